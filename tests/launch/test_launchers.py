#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""A ddpp program under other launchers: by the variables they set, and under those that are installed. (scripts/test --full
installs them: there none may be missing.) And the programs of examples/ under all of them.

usage: test_launchers.py DDPP_RUN RANK [FOLDER EXAMPLE...]      the EXAMPLEs are programs in FOLDER
"""
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import unittest
import uuid

from examples import FASHION, LICENCES, RANKS, examples, make_data
from launching import FULL, Job, LaunchCase, main

DDPP_RUN, RANK = map(os.path.abspath, sys.argv[1:3])
EXAMPLE_FOLDER, BUILT_EXAMPLES = "".join(sys.argv[3:4]), sys.argv[4:]
EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
ONE_TORCHRUN = threading.Lock()  # --standalone takes a fixed port in PyTorch 1.13
DEBIANS_PYTHON = "/usr/bin/python3"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def job_with_a_free_port():
    """The batch scripts make their port from the last four digits of the job's number."""
    while True:
        job = random.randrange(100000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", 20000 + job % 10000))
            return job


class Faked(LaunchCase):
    def assert_sums(self, environments, locals_=None):
        """All start with their variables and find each other."""
        size = len(environments)
        locals_ = locals_ or [f"{rank} of {size}" for rank in range(size)]
        with contextlib.ExitStack() as stack:
            jobs = [stack.enter_context(Job([RANK], environment)) for environment in environments]
            for rank, job in enumerate(jobs):
                job.finish()
                self.assert_ended(job, 0)
                self.assertEqual(job.output, f"rank {rank} of {size} local {locals_[rank]} sum {size * (size - 1) // 2}\n")

    def test_slurm_on_one_node(self):
        job = str(uuid.uuid4().int % 10**9)
        self.assert_sums([{"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "SLURM_LOCALID": str(rank), "SLURM_STEP_ID": "0",
                           "SLURM_JOB_ID": job, "SLURM_NNODES": "1", "SLURM_NODEID": "0"} for rank in range(3)])

    def test_slurm_on_two_nodes(self):
        common = {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2",
                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "DDPP_SECRET": "x"}
        self.assert_sums([{**common, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2)} for rank in range(4)],
                         [f"{rank % 2} of 2" for rank in range(4)])

    def test_open_mpi(self):
        name = uuid.uuid4().hex
        self.assert_sums([{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                           "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": name, "PMIX_RANK": str(rank)} for rank in range(2)])

    def test_mpich(self):
        self.assert_sums([{"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2"}
                          for rank in range(2)])

    def test_indexed_job(self):
        common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "DDPP_SECRET": "x"}
        self.assert_sums([{**common, "JOB_COMPLETION_INDEX": str(rank)} for rank in range(3)], ["0 of 1"] * 3)

    def test_torchrun_whose_agent_has_the_port(self):
        with socket.create_server(("127.0.0.1", 0)) as agent:
            common = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
                      "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.getsockname()[1]),
                      "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            self.assert_sums([{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)])

    def test_kubeflow(self):
        """Its RANK and WORLD_SIZE are not the ranks': ddpp-run reads PET_*."""
        port = free_port()
        with contextlib.ExitStack() as stack:
            jobs = [stack.enter_context(Job([DDPP_RUN, RANK], {
                "RANK": str(pod), "WORLD_SIZE": "6", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PET_NNODES": "3",
                "PET_NODE_RANK": str(pod), "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}))
                for pod in range(3)]
            for pod, job in enumerate(jobs):
                job.finish()
                self.assert_ended(job, 0)
                self.assertEqual(sorted(job.output.splitlines()),
                                 [f"[{2 * pod + i}] rank {2 * pod + i} of 6 local {i} of 2 sum 15" for i in (0, 1)])


def installed(program):
    """Under --full it must be."""
    return unittest.skipUnless(FULL or shutil.which(program), f"there is no {program}")


def has_module(module):
    return subprocess.run([DEBIANS_PYTHON, "-c", f"import {module}"], capture_output=True).returncode == 0


def needs_module(module):
    return unittest.skipUnless(FULL or has_module(module), f"Debian's Python has no {module}")


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Debian's PyTorch 1.13 takes its own default of these for an error, under Python 3.11.
TORCHRUN = ["torchrun", "--standalone", "--no_python", "-r", "9:1", "-t", "9:1"]


class Real(LaunchCase):
    LINES = [f"rank {rank} of 3 local {rank} of 3 sum 3" for rank in range(3)]

    def run_torchrun(self, *arguments):
        with ONE_TORCHRUN:
            return self.run_job([*TORCHRUN, "--nproc_per_node=3", *arguments])

    @installed("mpirun.openmpi")
    def test_open_mpi(self):
        job = self.run_job(["mpirun.openmpi", "--oversubscribe", "-np", 3, RANK], AS_ROOT)
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), self.LINES)

    @installed("mpirun.openmpi")
    def test_open_mpi_fails_as_the_rank_does(self):
        job = self.run_job(["mpirun.openmpi", "--oversubscribe", "-np", 3, RANK, "throw"], AS_ROOT)
        self.assertNotEqual(job.status, 0)
        self.assertIn('the "loss" is not a number', job.errors)

    @installed("mpirun.mpich")
    def test_mpich(self):
        job = self.run_job(["mpirun.mpich", "-np", 3, RANK])
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), self.LINES)

    @installed("mpirun.openmpi")
    def test_ddpp_run_under_mpirun_counts_alone(self):
        job = self.run_job(["mpirun.openmpi", "-np", 1, DDPP_RUN, "--nproc-per-node", 3, "--no-prefix", RANK], AS_ROOT)
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), self.LINES)

    @installed("torchrun")
    def test_torchrun(self):
        job = self.run_torchrun(RANK)
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), self.LINES)

    @installed("torchrun")
    def test_torchrun_starts_all_again_and_reads_the_error_file(self):
        job = self.run_torchrun("--max_restarts=1", RANK, "throw")
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), sorted(2 * self.LINES))
        job = self.run_torchrun(RANK, "throw")
        self.assertNotEqual(job.status, 0)
        self.assertIn('traceback : the "loss" is not a number', job.errors)

    @needs_module("torch")
    def test_pytorch_under_ddpp_run(self):
        script = self.script(f"#!{DEBIANS_PYTHON}\nimport torch, torch.distributed as dist\n"
                             "dist.init_process_group('gloo')\nx = torch.ones(1) * dist.get_rank()\n"
                             "dist.all_reduce(x)\nprint('sum', int(x))\n")
        job = self.run_job([DDPP_RUN, "--nproc-per-node", 3, script])
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), [f"[{rank}] sum 3" for rank in range(3)])


class Examples(LaunchCase):
    def test_batch_scripts(self):
        scripts = sorted((EXAMPLES / "slurm").glob("*.sbatch"))
        self.assertEqual(len(scripts), 2)
        for script in scripts:
            checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stderr), (0, ""), script)

    def test_batch_scripts_run(self):
        """With stand-ins for Slurm's commands: srun starts the tasks of two nodes here."""
        tools = self.folder / "bin"
        tools.mkdir()
        for name, text in {
            "scontrol": '#!/bin/sh\necho 127.0.0.1; echo other\n',
            "srun": '#!/bin/bash\nwhile [[ $1 = --* ]]; do shift; done\n'
                    'per_node=$((SLURM_NTASKS / SLURM_NNODES))\n'
                    'for ((i = 0; i < SLURM_NTASKS; ++i)); do\n'
                    '  SLURM_PROCID=$i SLURM_NODEID=$((i / per_node)) SLURM_LOCALID=$((i % per_node)) SLURM_STEP_ID=0 "$@" &\n'
                    'done\n'
                    'for task in $(jobs -p); do wait "$task" || exit; done\n'}.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        (tools / "ddpp-run").symlink_to(DDPP_RUN)
        slurm = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_NNODES": "2",
                 "SLURM_JOB_ID": str(job_with_a_free_port())}
        job = self.run_job(["bash", EXAMPLES / "slurm" / "ranks_by_srun.sbatch", RANK],
                           {**slurm, "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"})
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), [f"rank {rank} of 4 local {rank % 2} of 2 sum 6" for rank in range(4)])
        job = self.run_job(["bash", EXAMPLES / "slurm" / "ddpp_run_per_node.sbatch", RANK],
                           {**slurm, "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "2"})
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()),
                         [f"[{rank}] rank {rank} of 4 local {rank % 2} of 2 sum 6" for rank in range(4)])

    @needs_module("yaml")
    def test_manifests(self):
        program = ("import sys, yaml, json\nprint(json.dumps([list(yaml.safe_load_all(open(f))) for f in sys.argv[1:]]))\n")
        manifests = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
        self.assertEqual(len(manifests), 2)
        parsed = subprocess.run([DEBIANS_PYTHON, "-c", program, *manifests], capture_output=True, text=True, check=True)
        kinds = [[document["kind"] for document in documents] for documents in json.loads(parsed.stdout)]
        self.assertEqual(kinds, [["Service", "Job"], ["PyTorchJob"]])


@unittest.skipUnless(BUILT_EXAMPLES, "the examples are not built")
@unittest.skipUnless(FASHION.is_dir() and LICENCES.is_dir(), f"there is no {FASHION} or no {LICENCES}")
class Examples(LaunchCase):
    """Each, under each launcher, prints what it prints alone. Without --full all of them run under ddpp-run only."""

    def setUp(self):
        super().setUp()
        make_data(self.folder)
        self.examples = {name: each for name, each in examples(self.folder).items() if name in BUILT_EXAMPLES}
        self.assertEqual(len(self.examples), len(BUILT_EXAMPLES), "an example that is not in the table")

    def results(self, name, launcher, environment=None):
        example = self.examples[name]
        job = self.run_job([*launcher, f"{EXAMPLE_FOLDER}/{name}", *example.arguments], environment)
        self.assert_ended(job, 0)
        return re.findall(example.result, job.output)

    def assert_runs(self, name, launcher, environment=None):
        example = self.examples[name]
        with self.subTest(name):
            right = self.results(name, [DDPP_RUN, "--nproc-per-node", RANKS, "--no-prefix"] if example.needs_a_launcher else [])
            if example.starts_its_own:
                right *= RANKS
            self.assertNotEqual(right, [])
            self.assertEqual(sorted(self.results(name, launcher, environment)), sorted(right))

    def test_ddpp_run(self):
        for name in self.examples:
            self.assert_runs(name, [DDPP_RUN, "--nproc-per-node", RANKS, "--no-prefix"])

    def some(self):
        return self.examples if FULL else ["train_fashion_mnist"]

    @installed("torchrun")
    def test_torchrun(self):
        for name in self.some():
            with ONE_TORCHRUN:
                self.assert_runs(name, [*TORCHRUN, f"--nproc_per_node={RANKS}"])

    @installed("mpirun.openmpi")
    def test_open_mpi(self):
        for name in self.some():
            self.assert_runs(name, ["mpirun.openmpi", "--oversubscribe", "-np", RANKS], AS_ROOT)

    @installed("mpirun.mpich")
    def test_mpich(self):
        for name in self.some():
            self.assert_runs(name, ["mpirun.mpich", "-np", RANKS])


if __name__ == "__main__":
    main()
