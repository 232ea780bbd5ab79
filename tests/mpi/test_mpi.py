#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""The backend mpi under mpirun. With Open MPI where it is installed; under --full (scripts/test installs both) also with MPICH, for
which the programs are compiled here.

usage: test_mpi.py RANK CONFORMANCE TRAIN INCLUDE_DIR COMPILER...      RANK, CONFORMANCE, TRAIN: '-' where they are not built
"""
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from examples import FASHION, make_data  # noqa: E402

FULL = bool(os.environ.get("DDPP_TEST_FULL"))
OPEN_MPI = [word if word == "-" else os.path.abspath(word) for word in sys.argv[1:4]]
INCLUDE, COMPILER = sys.argv[4], sys.argv[5:]
# There may be more ranks than cores: who waits gives way.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
               "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
# MPI cannot tell who has died or left, nor who has not come; two ask for ranks that are children of one process.
EXCLUDED = ["*has died*", "*has left*", "who does not come is named", "*when the same program runs again*",
            "who waits for a root that has nothing for it*"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def build(package, program, *words):
    """For the MPI of this pkg-config package."""
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", package], capture_output=True, text=True, check=True).stdout.split()
    flags = [flag.replace("-I", "-isystem", 1) for flag in flags]
    subprocess.run([*COMPILER, "-std=c++20", "-O0", "-I", INCLUDE, "-pthread", *words, "-o", program, *flags, "-ldl"], check=True)


def build_conformance(package, program, header, transport):
    build(package, program, f"-DDDPP_TEST_TRANSPORT={transport}", f'-DDDPP_TEST_TRANSPORT_HEADER="../mpi/{header}"',
          HERE.parent / "conformance" / "suite.cpp", HERE.parent / "main.cpp")


class OpenMpi(unittest.TestCase):
    PACKAGE = "ompi-cxx"
    MPIRUN = ["mpirun.openmpi", "--oversubscribe", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo", "-n"]

    @classmethod
    def setUpClass(cls):
        if OPEN_MPI[0] == "-" or not shutil.which(cls.MPIRUN[0]):
            assert not FULL, "--full installs Open MPI"
            raise unittest.SkipTest("there is no Open MPI")
        cls.rank, cls.conformance, cls.train = OPEN_MPI

    def start(self, command, limit, **environment):
        kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
        job = subprocess.Popen([str(word) for word in command], env={**kept, **ENVIRONMENT, **environment}, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = job.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            self.fail(f"{command} has not ended within {limit} s: {job.communicate()[0][-3000:]}")
        return job.returncode, output

    def run_ranks(self, number, *words, **environment):
        return self.start([*self.MPIRUN, number, *words], 100, **environment)

    def assert_done(self, number, what):
        status, output = self.run_ranks(number, self.rank, what)
        self.assertEqual(status, 0, output)
        for rank in range(number):
            self.assertIn(f"rank {rank} of {number}: done", output)

    def test_what_ranks_do(self):
        for what in ("types", "groups", "training", "mismatch"):
            with self.subTest(what):
                self.assert_done(3, what)
        self.assert_done(4, "types")

    @unittest.skipIf(OPEN_MPI[2] == "-" or not FASHION.is_dir(), "the training example or its data are not there")
    def test_training_example(self):
        """It learns, and the losses are those of one rank, to twelve digits."""
        with tempfile.TemporaryDirectory() as folder:
            make_data(pathlib.Path(folder))
            losses = []
            for number in (1, 2, 3):
                status, output = self.run_ranks(number, self.train, "--data", folder, "--epochs", 2, "--precision", "double", "--hidden", 16)
                self.assertEqual(status, 0, output)
                losses.append(re.findall(r" \d+ +(\d+\.\d{12}) ", output))
        self.assertEqual(len(losses[0]), 2)
        self.assertLess(float(losses[0][1]), float(losses[0][0]))
        self.assertEqual(losses, 3 * losses[:1])

    def test_shared_memory_inside_hosts_and_mpi_across(self):
        self.assert_done(4, "hierarchy")

    def test_levels_of_checking(self):
        self.assert_done(2, "levels")

    def test_a_program_that_begins_and_ends_mpi_itself(self):
        self.assert_done(2, "own")
        self.assert_done(2, "too late")

    def test_too_few_threads(self):
        self.assert_done(2, "single")

    def test_an_exception_ends_the_job(self):
        status, output = self.run_ranks(3, self.rank, "throw")
        self.assertNotEqual(status, 0, output)
        self.assertIn("rank 1 has had enough", output)

    def test_ranks_that_no_mpirun_has_started(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([self.rank, "strangers"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env={**os.environ, **ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": "2",
                                           "DDPP_INIT_METHOD": f"file://{folder}/store"}) for rank in range(2)]
            for rank in ranks:
                try:
                    output, _ = rank.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    rank.kill()
                    self.fail(rank.communicate()[0])
                self.assertEqual(rank.returncode, 0, output)

    def test_conformance(self):
        for number in (2, 3, 4) if FULL else (4,):
            with self.subTest(ranks=number):
                self.assert_conforms(number, self.conformance)

    @unittest.skipUnless(FULL, "only under --full")
    def test_conformance_of_shared_memory_inside_hosts_and_mpi_across(self):
        with tempfile.TemporaryDirectory() as folder:
            build_conformance(self.PACKAGE, folder + "/conformance", "checked_hierarchy.hpp", "support::checked_hierarchy")
            self.assert_conforms(4, folder + "/conformance")

    def assert_conforms(self, number, program):
        status, output = self.start(
            [*self.MPIRUN, number, program, "--no-colors", "--test-suite-exclude=full", "--test-case-exclude=" + ",".join(EXCLUDED)], 300,
            DDPP_TEST_RANKS="itself", DDPP_TEST_MOST_RANKS=str(number), DDPP_SECRET=secrets.token_hex(16),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        self.assertEqual(status, 0, output[-6000:])
        self.assertEqual(output.count(" passed, 0 failed"), number, output[-6000:])


class Mpich(OpenMpi):
    PACKAGE = "mpich"
    MPIRUN = ["mpirun.mpich", "-n"]

    @classmethod
    def setUpClass(cls):
        if not FULL:
            raise unittest.SkipTest("only under --full")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.rank, cls.conformance, cls.train = (f"{cls.folder.name}/{name}" for name in ("rank", "conformance", "train"))
        build(cls.PACKAGE, cls.rank, HERE / "rank.cpp")
        build_conformance(cls.PACKAGE, cls.conformance, "checked_mpi.hpp", "support::checked_mpi")
        if OPEN_MPI[2] != "-":
            build(cls.PACKAGE, cls.train, "-DTRAIN_ON_MPI", "-I/usr/include/eigen3", HERE.parent.parent / "examples" / "train_fashion_mnist.cpp", "-lz")


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    for test, reason in result.skipped:
        print(f"skip mpi/{test.id()}: {reason}")
    print(f"{result.testsRun - failed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)
