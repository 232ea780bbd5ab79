# SPDX-License-Identifier: BSL-1.0
"""What the tests of launchers share: jobs whose processes can be found again, and a summary that scripts/run-tests reads."""
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

LIMIT = 60  # seconds; nothing here takes so long
FULL = bool(os.environ.get("DDPP_TEST_FULL"))
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
                "OMP_NUM_THREADS", "JOB_COMPLETION_INDEX")
OF_LAUNCHERS_PREFIXES = ("DDPP_", "PET_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_")


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if name not in OF_LAUNCHERS and (not name.startswith(OF_LAUNCHERS_PREFIXES) or name == "DDPP_TEST_FULL")}
    return {**kept, **more}


class Job:
    """A process whose descendants carry a mark in their environment. Used as a context: none is left afterwards."""

    def __init__(self, command, environment=None, **how):
        self.mark = f"LAUNCH_TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        how.setdefault("stdin", subprocess.DEVNULL)
        how.setdefault("stdout", subprocess.PIPE)
        how.setdefault("stderr", subprocess.PIPE)
        self.process = subprocess.Popen([str(word) for word in command], text=True,
                                        env={**clean_environment(), **(environment or {}), name: value}, **how)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.running():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for stream in (self.process.stdout, self.process.stderr, self.process.stdin):
            if stream:
                stream.close()
        self.process.wait(LIMIT)

    def running(self):
        """Those with the mark that have not ended, the launcher's own processes included."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def finish(self):
        self.output, self.errors = self.process.communicate(timeout=LIMIT)
        self.status = self.process.returncode
        return self

    def wait_until_none_runs(self):
        wait_until(lambda: not self.running(), lambda: f"{self.running()} still run")

    def read_until(self, *lines):
        """Reads stdout until each of these lines has come."""
        missing = list(lines)
        while missing:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"{missing} did not come")
            if line.rstrip("\n") in missing:
                missing.remove(line.rstrip("\n"))


def wait_until(condition, otherwise):
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(otherwise())
        time.sleep(0.01)


class LaunchCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, text, name="script.py"):
        """An executable file; Python unless it says otherwise."""
        file = self.folder / name
        file.write_text(text if text.startswith("#!") else f"#!{sys.executable}\n" + text)
        file.chmod(0o755)
        return file

    def run_job(self, command, environment=None, **how):
        """Runs it to its end. Nothing of it may be left then."""
        with Job(command, environment, **how) as job:
            job.finish()
            self.assertEqual(job.running(), [], "processes that are left")
            return job

    def assert_ended(self, job, status):
        self.assertEqual(job.status, status, f"{job.output}\n{job.errors}")


def cases_of(suite):
    return [case for each in suite for case in (cases_of(each) if isinstance(each, unittest.TestSuite) else [each])]


def run_case(case):
    result = unittest.TestResult()
    case.run(result)
    return result


def name_of(case):
    return f"{pathlib.Path(sys.argv[0]).stem}/{case.id().split('.')[-1]}"


def all_cases():
    return cases_of(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))


def skip_all(reason):
    for case in all_cases():
        print(f"skip {name_of(case)}: {reason}")
    print(f"0 passed, 0 failed, {len(all_cases())} skipped")
    sys.exit(0)


def main(at_a_time=6):
    """Runs all cases of the calling module, several at a time: they wait more than they compute. A skipped one must be
    named in tests/allowed-skips."""
    cases = all_cases()
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as threads:
        results = list(threads.map(run_case, cases))
    passed = failed = skipped = 0
    for case, result in zip(cases, results):
        for _, text in result.failures + result.errors:
            print(f"FAIL {case.id()}\n{text}")
        for _, reason in result.skipped:
            print(f"skip {name_of(case)}: {reason}")
        failed += not result.wasSuccessful()
        skipped += bool(result.skipped)
        passed += result.wasSuccessful() and not result.skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)
