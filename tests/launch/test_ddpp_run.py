#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""ddpp-run on one node: what ranks are told, how each way of ending is reported, and that nothing is left.

usage: test_ddpp_run.py DDPP_RUN RANK
"""
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import unittest

from launching import Job, LaunchCase, main

DDPP_RUN, RANK = map(os.path.abspath, sys.argv[1:3])

SHOW = "import os\nprint(*(f'{name}={os.environ.get(name)}' for name in %r))\n"
# Grandchildren of all kinds: in the rank's process group, in a session of its own, and one without a parent.
FAMILY = "sleep 600 & setsid sleep 600 & (sleep 600 &); "


def run(*arguments):
    return [DDPP_RUN, *arguments]


def worker_of(launcher):
    """Of ddpp-run's two processes the one that the other keeps."""
    return int(open(f"/proc/{launcher}/task/{launcher}/children").read().split()[0])


def can_unshare(*arguments):
    return shutil.which("unshare") and subprocess.run(["unshare", *arguments, "true"], capture_output=True).returncode == 0


OWN_DEV = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]


class WhatRanksAreTold(LaunchCase):
    def test_variables(self):
        names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS",
                 "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"]
        job = self.run_job(run("--nproc-per-node=2", "--rdzv_id", "it", "--max_restarts=3", self.script(SHOW % names)))
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), [
            f"[{rank}] RANK={rank} LOCAL_RANK={rank} GROUP_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
            "OMP_NUM_THREADS=1 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=it"
            for rank in (0, 1)])
        self.assertIn("OMP_NUM_THREADS is not set", job.errors)

    def test_number_of_threads_is_left_alone(self):
        script = self.script(SHOW % ["OMP_NUM_THREADS"])
        job = self.run_job(run("--nproc-per-node", 2, script), {"OMP_NUM_THREADS": "5"})
        self.assertEqual(sorted(job.output.splitlines()), ["[0] OMP_NUM_THREADS=5", "[1] OMP_NUM_THREADS=5"])
        self.assertEqual(job.errors, "")
        self.assertIn("OMP_NUM_THREADS=None", self.run_job(run(script)).output)

    def test_surrounding_launchers_do_not_count(self):
        job = self.run_job(run("--nproc-per-node", 2, RANK), {
            "DDPP_RANK": "7", "DDPP_WORLD_SIZE": "9", "DDPP_INIT_METHOD": "tcp://nowhere:1", "RANK": "5", "WORLD_SIZE": "6",
            "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"})
        self.assert_ended(job, 0)
        self.assertIn("[1] rank 1 of 2 local 1 of 2 sum 1", job.output)

    def test_ranks_meet_whatever_the_masters_address(self):
        """That is for what rank 0 serves itself."""
        job = self.run_job(run("--nproc-per-node", 2, "--master-addr", "master.invalid", RANK))
        self.assert_ended(job, 0)
        self.assertIn("[1] rank 1 of 2 local 1 of 2 sum 1", job.output)

    def test_master_port_can_be_chosen_and_is_free(self):
        script = self.script("import os, socket\n"
                             "s = socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n"
                             "print(s.getsockname()[1] == int(os.environ['MASTER_PORT']))\n")
        self.assertEqual(self.run_job(run(script)).output, "[0] True\n")
        job = self.run_job(run("--master-port", 29123, "--master_addr", "localhost",
                               self.script(SHOW % ["MASTER_ADDR", "MASTER_PORT"], "show.py")))
        self.assertEqual(job.output, "[0] MASTER_ADDR=localhost MASTER_PORT=29123\n")

    def test_arguments_are_passed_as_they_are(self):
        script = self.script("import sys; print(sys.argv[1:])\n", "module.py")
        words = ["--help", "--nproc-per-node", "9", "--nnodes=3", "-r", "-m", "", "a b", "--", "x"]
        for before in ([], ["--"]):
            job = self.run_job(run("--nproc-per-node", 1, *before, script, *words))
            self.assertEqual(job.output, f"[0] {words}\n")
            job = self.run_job(run("-m", *before, "module", *words), cwd=self.folder)
            self.assertEqual(job.output, f"[0] {words}\n")

    def test_pass_local_rank(self):
        job = self.run_job(run("--pass-local-rank", self.script("import sys; print(sys.argv[1:])\n"), "x"))
        self.assertEqual(job.output, "[0] ['x', '--local-rank=0']\n")

    def test_spellings(self):
        script = self.script(SHOW % ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"])
        for words in (["--nnodes=1:1", "--nproc_per_node=2", "--master_addr=localhost", "--master_port=29124", "--rdzv_id=7"],
                      ["--nnodes", "1", "--nproc-per-node", "3", "--nproc-per-node", "2", "--rdzv-endpoint", "elsewhere:29400",
                       "--master-addr", "localhost", "--master-port", "29124", "--rdzv-id", "7"],
                      ["--standalone", "--nnodes=4", "--nproc-per-node=2", "--master-addr=localhost", "--master_port=29124", "--rdzv-id=7", "--"]):
            job = self.run_job(run(*words, script))
            self.assertEqual(sorted(job.output.splitlines()),
                             [f"[{rank}] WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29124 TORCHELASTIC_RUN_ID=7" for rank in (0, 1)], words)

    def test_environment_instead_of_options(self):
        script = self.script(SHOW % ["WORLD_SIZE"])
        job = self.run_job(run(script), {"PET_NPROC_PER_NODE": "2"})
        self.assertEqual(job.output.count("WORLD_SIZE=2"), 2)
        self.assertEqual(self.run_job(run("--nproc-per-node", 1, script), {"PET_NPROC_PER_NODE": "2"}).output,
                         "[0] WORLD_SIZE=1\n")

    def size_of_world(self, *how, environment=None, **more):
        job = self.run_job([*how, "sh", "-c", "echo $WORLD_SIZE"], environment, **more)
        self.assert_ended(job, 0)
        sizes = {int(line.split()[1]) for line in job.output.splitlines()}
        self.assertEqual(sizes, {len(job.output.splitlines())})
        return sizes.pop()

    def test_number_of_ranks_by_cores(self):
        cores = os.sched_getaffinity(0)
        self.assertIn(self.size_of_world(*run("--nproc-per-node", "cpu")), range(1, len(cores) + 1))
        one = {min(cores)}
        self.assertEqual(self.size_of_world(*run("--nproc_per_node=cpu"), preexec_fn=lambda: os.sched_setaffinity(0, one)), 1)

    @unittest.skipUnless(can_unshare(*OWN_DEV), "no mount namespaces here")
    def test_number_of_ranks_by_devices(self):
        def by(what, devices):
            files = " ".join(["null", *devices])
            return ["unshare", *OWN_DEV, "sh", "-c", f'mount -t tmpfs none /dev && cd /dev && touch {files} && cd / && exec "$0" "$@"',
                    *run("--nproc-per-node", what)]

        three = ["nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
        for what in ("gpu", "auto"):
            for visible, size in [(None, 3), ("1", 1), ("0,2", 2), ("1,-1,0", 1), ("GPU-8932f937,GPU-a1b2", 2), ("0,1,2,3,4", 3)]:
                with self.subTest(what=what, visible=visible):
                    self.assertEqual(self.size_of_world(*by(what, three), environment={"CUDA_VISIBLE_DEVICES": visible} if visible else None), size)
        for devices, visible in [([], {}), (["nvidiactl"], {}), (three, {"CUDA_VISIBLE_DEVICES": ""}), (three, {"CUDA_VISIBLE_DEVICES": "-1"})]:
            with self.subTest(devices=devices, visible=visible):
                job = self.run_job([*by("gpu", devices), "true"], visible)
                self.assert_ended(job, 2)
                self.assertIn("there is no NVIDIA device", job.errors)
                self.assertEqual(self.size_of_world(*by("auto", devices), environment=visible), self.size_of_world(*run("--nproc-per-node", "cpu")))

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "there is one core")
    def test_binding_to_cores(self):
        script = self.script("import os; print(sorted(os.sched_getaffinity(0)))\n")
        job = self.run_job(run("--nproc-per-node", 2, "--bind-to", "core", script))
        shares = [json.loads(line[4:]) for line in job.output.splitlines()]
        self.assertEqual(sorted(shares[0] + shares[1]), sorted(os.sched_getaffinity(0)))

    def test_only_rank_0_reads_stdin(self):
        script = self.script("import os, sys; print(repr(sys.stdin.read()))\n")
        with Job(run("--nproc-per-node", 2, script), stdin=subprocess.PIPE) as job:
            job.output, _ = job.process.communicate("all of it", timeout=60)
        self.assertEqual(sorted(job.output.splitlines()), ["[0] 'all of it'", "[1] ''"])

    def test_secret_is_in_the_environment_only(self):
        script = self.script("import os\nsecret = os.environ['DDPP_SECRET']\n"
                             "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
                             "    try: words = open(f'/proc/{pid}/cmdline').read()\n"
                             "    except OSError: continue\n"
                             "    assert secret not in words, words\n"
                             "print(secret)\n")
        first, second = self.run_job(run(script)), self.run_job(run(script))
        self.assertRegex(first.output, r"^\[0\] [0-9a-f]{64}\n$")
        self.assertNotEqual(first.output, second.output)
        given = secrets.token_hex()  # which no other process has among its arguments
        self.assertEqual(self.run_job(run(script), {"DDPP_SECRET": given}).output, f"[0] {given}\n")

    def test_each_leads_a_session(self):
        script = self.script("import os; print(os.getsid(0) == os.getpid())\n")
        self.assertEqual(self.run_job(run(script)).output, "[0] True\n")

    def test_signals_are_as_they_were(self):
        script = self.script("import signal\nprint(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,\n"
                             "      signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
                             "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('SigBlk')])\n")
        self.assertEqual(self.run_job(run(script)).output, "[0] True set()\n[0] ['0000000000000000']\n")


class Programs(LaunchCase):
    def test_ddpp_program(self):
        job = self.run_job(run("--standalone", "--nproc-per-node", 3, RANK))
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()),
                         [f"[{rank}] rank {rank} of 3 local {rank} of 3 sum 3" for rank in range(3)])

    def test_shell_and_python(self):
        self.assertEqual(self.run_job(run("sh", "-c", "echo $RANK")).output, "[0] 0\n")
        script = self.folder / "plain.py"
        script.write_text("import sys; print(sys.argv[1:])\n")  # not executable
        self.assertEqual(self.run_job(run(script, "-x")).output, "[0] ['-x']\n")
        self.assertEqual(self.run_job(run("plain.py"), cwd=self.folder).output, "[0] []\n")
        self.assertEqual(self.run_job(run("-m", "plain", "y"), cwd=self.folder).output, "[0] ['y']\n")

    def test_what_cannot_be_run(self):
        (self.folder / "data.txt").write_text("no program\n")
        for status, says, arguments in [
                (127, "no program 'not-there'", ["not-there"]), (127, "did you mean ./data.txt", ["data.txt"]),
                (127, "No such file", ["./not-there"]), (126, "not executable", ["./data.txt"]),
                (126, "not executable", ["--no-python", "./plain.py"]), (126, "no file", ["/usr"])]:
            (self.folder / "plain.py").write_text("")
            job = self.run_job(run("--nproc-per-node", 2, *arguments), cwd=self.folder)
            self.assertIn(says, job.errors)
            self.assert_ended(job, status)

    def test_broken_interpreter(self):
        job = self.run_job(run("--nproc-per-node", 2, self.script("#!/not/there\n")))
        self.assert_ended(job, 127)
        self.assertIn("cannot run", job.errors)

    def test_bad_command_lines(self):
        for arguments, says in [
                ([], "which program"), (["--nproc-per-node", "0", "true"], "'0' is no number"),
                (["--nproc-per-node", "many", "true"], "auto, cpu or gpu"), (["--nope", "true"], "no option --nope"),
                (["--nnodes", "1:4", "true"], "does not change its size"), (["--nnodes", "2", "true"], "--rdzv-endpoint"),
                (["--rdzv-backend", "etcd", "true"], "etcd"), (["-r", "4", "true"], "from 0 to 3"),
                (["-t", "0:1,x", "true"], "0:1,1:3"), (["--signals-to-handle", "SIGWHAT", "true"], "is no signal"),
                (["--signals-to-handle", "SIGKILL", "true"], "cannot be passed on"),
                (["--bind-to", "socket", "true"], "none and core"), (["--node-rank", "1", "true"], "does not exist"),
                (["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "h:1", "true"], "from 0 to 1"),
                (["--rdzv-conf", "timeout=soon", "true"], "timeout"), (["--grace", "-1", "true"], "--grace")]:
            job = self.run_job(run(*arguments))
            self.assertIn(says, job.errors, arguments)
            self.assert_ended(job, 2)
        self.assertIn("--nproc-per-node", self.run_job(run("--help")).output)

    def test_accepted_for_those_who_come_from_torchrun(self):
        job = self.run_job(run("--nnodes=1:1", "--nproc_per_node=1", "--node_rank=0", "--rdzv_backend=c10d",
                               "--rdzv_endpoint=localhost:0", "--rdzv_conf=timeout=5,last_call_timeout=3", "--monitor_interval=5",
                               "--start_method=fork", "--role=trainer", "--local_addr=x", "--use_env", "--no_python",
                               self.script(SHOW % ["ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"])))
        self.assertEqual(job.output, "[0] ROLE_NAME=trainer ROLE_RANK=0 ROLE_WORLD_SIZE=1\n", job.errors)


class Output(LaunchCase):
    def test_lines_are_whole(self):
        script = self.script("import os, sys\nfor i in range(10000):\n"
                             "    sys.stdout.write(f'{os.environ[\"RANK\"]} {i} {\"x\" * (i % 61)}\\n')\n"
                             "    if i % 7 == 0: sys.stdout.flush()\n"
                             "sys.stdout.write('no newline')\n")
        job = self.run_job(run("--nproc-per-node", 8, script))
        self.assert_ended(job, 0)
        of_rank = {str(rank): 0 for rank in range(8)}
        for line in job.output.splitlines():
            prefix, rest = line.split(" ", 1)
            rank = prefix[1:-1]
            i = of_rank[rank]
            self.assertEqual(rest, f"{rank} {i} " + "x" * (i % 61) if i < 10000 else "no newline")
            of_rank[rank] += 1
        self.assertEqual(set(of_rank.values()), {10001})
        self.assertTrue(job.output.endswith("no newline\n"))

    def test_lines_stay_whole_beside_another_writer(self):
        script = self.script("import sys\nfor i in range(5000): sys.stdout.write('x' * 97 + '\\n')\n")
        job = self.run_job(["sh", "-c", '"$0" "$@" & "$0" "$@"; wait', *run("--nproc-per-node", 2, script)])
        self.assertEqual({line[3:] for line in job.output.splitlines()}, {" " + "x" * 97})
        self.assertEqual(len(job.output.splitlines()), 20000)

    def test_long_lines_and_any_bytes(self):
        script = self.script("import sys\nsys.stdout.buffer.write(b'a' * 300000 + b'\\n' + bytes(range(128, 256)) + b'\\n')\n")
        with Job(run(script)) as job:
            output = job.process.stdout.buffer.read()
        self.assertEqual(output, b"[0] " + b"a" * 300000 + b"\n[0] " + bytes(range(128, 256)) + b"\n")

    def test_without_prefix(self):
        self.assertEqual(self.run_job(run("--no-prefix", "sh", "-c", "echo out; echo err >&2")).output, "out\n")

    def test_streams_stay_apart(self):
        job = self.run_job(run("sh", "-c", "echo out; echo err >&2"))
        self.assertEqual((job.output, job.errors), ("[0] out\n", "[0] err\n"))

    def logs(self):
        (folder,) = self.folder.glob("logs/job_*/attempt_0")
        return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.glob("*/*.log"))}

    def both(self, *options):
        job = self.run_job(run("--nproc-per-node", 2, "--rdzv-id", "job", "--log-dir", self.folder / "logs", *options,
                               "sh", "-c", "echo out $RANK; echo err $RANK >&2"))
        self.assert_ended(job, 0)
        shown = [line for line in job.errors.splitlines() if line.startswith("[")]
        return sorted(job.output.splitlines()), sorted(shown), self.logs()

    def test_redirects(self):
        self.assertEqual(self.both("-r", "0:1,1:3"), (
            [], ["[0] err 0"], {"0/stdout.log": "out 0\n", "1/stdout.log": "out 1\n", "1/stderr.log": "err 1\n"}))

    def test_tee(self):
        self.assertEqual(self.both("--tee=2"), (
            ["[0] out 0", "[1] out 1"], ["[0] err 0", "[1] err 1"], {"0/stderr.log": "err 0\n", "1/stderr.log": "err 1\n"}))

    def test_redirects_and_tee(self):
        self.assertEqual(self.both("-r3", "-t1", "--local-ranks-filter", "1"), (
            ["[1] out 1"], [], {"0/stdout.log": "out 0\n", "0/stderr.log": "err 0\n", "1/stdout.log": "out 1\n",
                                "1/stderr.log": "err 1\n"}))

    def test_reader_that_goes(self):
        """The ranks go on: their work is worth more than their words."""
        done = self.folder / "done"
        script = self.script(f"for i in range(100000): print(i)\nopen({str(done)!r}, 'w')\n")
        with Job(run(script)) as job:
            job.process.stdout.readline()
            job.process.stdout.close()
            self.assertEqual(job.process.wait(60), 0)
        self.assertTrue(done.exists())

    def test_reader_that_stops_cannot_keep_the_job(self):
        with Job(run("--grace", 1, self.script("while True: print('x' * 100)\n"))) as job:
            job.process.stdout.readline()
            job.process.terminate()
            self.assertEqual(job.process.wait(60), 128 + signal.SIGTERM)
            job.wait_until_none_runs()

    def test_slow_reader_gets_everything(self):
        with Job(run(self.script("for i in range(100000): print(i)\n"))) as job:
            lines = 0
            while job.process.stdout.readline():
                lines += 1
                if lines == 1:
                    time.sleep(1)
            self.assertEqual((lines, job.process.wait(60)), (100000, 0))

    def test_closed_streams(self):
        file = self.folder / "said"
        job = self.run_job(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', *run("sh", "-c", f"echo out > {file}; echo lost; cat")])
        self.assert_ended(job, 0)
        self.assertEqual(file.read_text(), "out\n")

    def test_many_ranks_and_few_descriptors(self):
        script = "ulimit -S -n; echo out; echo err >&2"
        job = self.run_job(["sh", "-c", 'ulimit -S -n 64; exec "$0" "$@"', *run("--nproc-per-node", 60, "sh", "-c", script)])
        self.assert_ended(job, 0)
        self.assertEqual(job.output.count(" out\n"), 60)
        self.assertEqual(job.output.count(" 64\n"), 60)
        job = self.run_job(["sh", "-c", 'ulimit -n 64; exec "$0" "$@"', *run("--nproc-per-node", 60, "sleep", "600")])
        self.assert_ended(job, 1)
        self.assertIn("60 ranks here need 272 open files, and no more than 64 are allowed", job.errors)

    def test_no_file_is_left(self):
        self.run_job(run("--nproc-per-node", 2, "true"), {"TMPDIR": str(self.folder)})
        self.run_job(run("--nproc-per-node", 2, "false"), {"TMPDIR": str(self.folder)})
        self.assertEqual(list(self.folder.iterdir()), [])


class Ends(LaunchCase):
    def test_first_failure_counts(self):
        job = self.run_job(run("--nproc-per-node", 3, "sh", "-c",
                               "[ $RANK = 1 ] || exec sleep 600; echo it broke >&2; exit 3"))
        self.assert_ended(job, 3)
        self.assertIn("rank 1 failed first: exit code 3", job.errors)
        self.assertIn("| it broke", job.errors)

    def test_signal(self):
        job = self.run_job(run("--nproc-per-node", 2, "sh", "-c", "[ $RANK = 0 ] || kill -SEGV $$; exec sleep 600"))
        self.assert_ended(job, 128 + signal.SIGSEGV)
        self.assertIn("rank 1 failed first: SIGSEGV (Segmentation fault)", job.errors)

    def test_rank_that_ignores_sigterm(self):
        script = self.script("import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                             "open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w')\n"
                             "while os.environ['RANK'] == '0': time.sleep(1)\n"
                             "while not os.path.exists(f'{sys.argv[1]}/0'): time.sleep(0.01)\nsys.exit(5)\n")
        job = self.run_job(run("--nproc-per-node", 2, "--grace", 0.3, script, self.folder))
        self.assert_ended(job, 5)

    def test_rank_that_uses_its_grace(self):
        script = self.script("import os, signal, sys, time\n"
                             "def save(*_): time.sleep(0.3); print('saved', flush=True); sys.exit(0)\n"
                             "signal.signal(signal.SIGTERM, save)\nopen(f'{sys.argv[1]}/ready', 'w')\n"
                             "while True: time.sleep(1)\n")
        job = self.run_job(run("--nproc-per-node", 2, "sh", "-c",
                               f"[ $RANK = 1 ] || {{ {script} {self.folder}; exit; }}; "
                               f"until [ -e {self.folder}/ready ]; do sleep 0.01; done; exit 4"))
        self.assert_ended(job, 4)
        self.assertIn("[0] saved", job.output)  # although the shell around it was gone

    def test_rank_0_may_end_early(self):
        script = self.script("import os, sys, time\nfile = sys.argv[1] + '/0'\n"
                             "if os.environ['RANK'] == '0': open(file, 'w').write(str(os.getpid())); sys.exit(0)\n"
                             "while not os.path.exists(file) or not open(file).read(): time.sleep(0.01)\n"
                             "while os.path.exists('/proc/' + open(file).read()): time.sleep(0.01)\n"
                             "print('goes on')\n")
        job = self.run_job(run("--nproc-per-node", 3, script, self.folder))
        self.assert_ended(job, 0)
        self.assertEqual(sorted(job.output.splitlines()), ["[1] goes on", "[2] goes on"])

    def test_grandchildren_end_too(self):
        for ending, status in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)]:
            job = self.run_job(run("--nproc-per-node", 2, "--grace", 5, "sh", "-c", FAMILY + ending))
            self.assert_ended(job, status)

    def test_end_by_signals(self):
        for number, more in [(signal.SIGTERM, ""), (signal.SIGINT, ""), (signal.SIGHUP, ""), (signal.SIGQUIT, ""),
                             (signal.SIGTERM, FAMILY)]:
            with Job(run("--nproc-per-node", 2, "--grace", 5, "sh", "-c", f"{more}echo ready; sleep 600")) as job:
                job.read_until("[0] ready", "[1] ready")
                job.process.send_signal(number)
                job.finish()
                self.assert_ended(job, 128 + number)
                self.assertEqual(job.running(), [])
                self.assertIn(f"{signal.Signals(number).name} has ended the job", job.errors)

    def test_ranks_get_the_signal_itself(self):
        script = self.script("import signal, sys, time\n"
                             "def said(number, _): print('got', number, flush=True); sys.exit(0)\n"
                             "signal.signal(signal.SIGTERM, said); signal.signal(signal.SIGINT, said)\n"
                             "print('ready', flush=True)\nwhile True: time.sleep(1)\n")
        for number in (signal.SIGTERM, signal.SIGINT):
            with Job(run("--nproc-per-node", 2, script)) as job:
                job.read_until("[0] ready", "[1] ready")
                job.process.send_signal(number)
                job.finish()
                self.assert_ended(job, 128 + number)
                self.assertEqual(sorted(job.output.splitlines()), [f"[{rank}] got {int(number)}" for rank in (0, 1)])

    def test_hang_up_that_is_ignored(self):
        script = self.script("print('ready', flush=True); input(); print('done')\n")
        with Job(["sh", "-c", 'trap "" HUP; exec "$0" "$@"', *run(script)], stdin=subprocess.PIPE) as job:
            job.read_until("[0] ready")
            job.process.send_signal(signal.SIGHUP)
            job.process.stdin.write("\n")
            job.process.stdin.flush()
            job.finish()
            self.assert_ended(job, 0)

    def test_other_signals_are_passed_on_when_asked(self):
        script = self.script("import signal, sys, time\n"
                             "signal.signal(signal.SIGUSR1, lambda *_: (print('got it', flush=True), sys.exit(0)))\n"
                             "print('ready', flush=True)\nwhile True: time.sleep(1)\n")
        for command in ([script], ["sh", "-c", f"{script}; true"]):  # the shell has no handler, and must not die
            with Job(run("--nproc-per-node", 2, "--signals-to-handle", "SIGTERM,SIGUSR1", *command)) as job:
                job.read_until("[0] ready", "[1] ready")
                job.process.send_signal(signal.SIGUSR1)
                job.finish()
                self.assert_ended(job, 0)
                self.assertEqual(sorted(job.output.splitlines()), ["[0] got it", "[1] got it"])

    def test_terminal_signals_one_of_the_two_processes(self):
        """Or what is typed there would come twice: from the terminal, and passed on."""
        with Job(run("sh", "-c", "echo ready; sleep 600")) as job:
            job.read_until("[0] ready")
            self.assertNotEqual(os.getpgid(worker_of(job.process.pid)), os.getpgid(job.process.pid))
            job.process.terminate()
            job.finish()

    def test_signal_that_no_process_of_a_rank_handles(self):
        with Job(run("--signals-to-handle", "USR1", "sh", "-c", "echo ready; exec sleep 600")) as job:
            job.read_until("[0] ready")
            job.process.send_signal(signal.SIGUSR1)
            job.finish()
            self.assert_ended(job, 128 + signal.SIGUSR1)

    def test_whoever_of_the_launcher_is_killed_nothing_is_left(self):
        for which, *options in (("the one that was started",), ("the one that works",),
                                ("the one that was started", "--signals-to-handle", "USR1")):
            for wrapped in ("exec sleep 600", FAMILY + "sleep 600", "trap '' TERM; " + FAMILY + "sleep 600; true"):
                with self.subTest(which=which, options=options, ranks=wrapped), \
                        Job(run("--nproc-per-node", 2, *options, "sh", "-c", "echo ready; " + wrapped), {"TMPDIR": str(self.folder)}) as job:
                    job.read_until("[0] ready", "[1] ready")
                    victim = job.process.pid
                    if which == "the one that works":
                        victim = worker_of(victim)
                    os.kill(victim, signal.SIGKILL)
                    self.assertEqual(abs(job.process.wait(60)) % 128, signal.SIGKILL)
                    job.wait_until_none_runs()
                    self.assertEqual(list(self.folder.iterdir()), [])

    def test_signals_that_come_twice(self):
        """As from `timeout`, which signals its process group, too."""
        with Job(run("sh", "-c", "echo ready; sleep 600")) as job:
            job.read_until("[0] ready")
            for _ in range(3):
                job.process.terminate()
            job.finish()
            self.assert_ended(job, 128 + signal.SIGTERM)

    def test_children_of_the_shell_that_it_replaces_are_not_its_own(self):
        with Job(["sh", "-c", 'sleep 600 >&- 2>&- & exec "$0" "$@"', *run("sh", "-c", FAMILY)]) as job:
            job.finish()
            self.assert_ended(job, 0)
            self.assertEqual(len(job.running()), 1)

    def test_error_file(self):
        job = self.run_job(run("--nproc-per-node", 3, RANK, "throw"))
        self.assert_ended(job, 1)
        self.assertIn("rank 1 failed first: exit code 1", job.errors)  # not those who lost it
        self.assertIn('its error: the "loss" is not a number', job.errors)

    def test_error_file_is_kept_with_the_logs(self):
        job = self.run_job(run("--nproc-per-node", 2, "--log-dir", self.folder, RANK, "throw"))
        (named,) = re.findall(r"its error file: (\S+)", job.errors)
        self.assertEqual(json.load(open(named))["message"]["message"], 'the "loss" is not a number')

    def test_one_that_follows_is_not_the_first(self):
        follower = json.dumps({"message": {"message": "lost it", "extraInfo": {"ddpp_follows_another": "1"}}})
        job = self.run_job(run("--nproc-per-node", 2, "sh", "-c",
                               f"if [ $RANK = 0 ]; then echo '{follower}' > $TORCHELASTIC_ERROR_FILE; "
                               f"touch {self.folder}/gone; exit 1; fi; "
                               f"until [ -e {self.folder}/gone ]; do sleep 0.01; done; sleep 0.05; exit 6"))
        self.assert_ended(job, 6)
        self.assertIn("rank 1 failed first", job.errors)

    def test_nonsense_in_the_error_file(self):
        for content in ("{", "[]", '{"message": 3}', '{"message": {"message": 1, "extraInfo": []}}', r"\377"):
            job = self.run_job(run("sh", "-c", f"printf '{content}' > $TORCHELASTIC_ERROR_FILE; exit 9"))
            self.assert_ended(job, 9)
        job = self.run_job(run("sh", "-c", """echo '{"message": "plain"}' > $TORCHELASTIC_ERROR_FILE; exit 9"""))
        self.assertIn("its error: plain", job.errors)

    def test_only_the_last_lines_of_stderr_are_repeated(self):
        job = self.run_job(run("--no-prefix", "sh", "-c", "for i in $(seq 1000); do echo line $i >&2; done; exit 1"))
        self.assertEqual(re.findall(r"\| line (\d+)", job.errors), [str(i) for i in range(981, 1001)])


class Restarts(LaunchCase):
    def test_all_start_again(self):
        job = self.run_job(run("--nproc-per-node", 3, "--max-restarts", 2, RANK, "die"))
        self.assert_ended(job, 0)
        for rank in range(3):  # the second time they meet anew
            self.assertEqual(job.output.count(f"[{rank}] rank {rank} of 3 local {rank} of 3 sum 3"), 2)
        self.assertIn("restart 1 of 2", job.errors)
        self.assertIn("rank 1 failed first: SIGSEGV", job.errors)

    def test_as_often_as_asked(self):
        job = self.run_job(run("--nproc-per-node", 2, "--max-restarts", 2, "--log-dir", self.folder, "-t", "1", "sh", "-c",
                               "echo $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                               f"mark={self.folder}/said.$TORCHELASTIC_RESTART_COUNT; touch $mark.$RANK; "
                               "until [ -e $mark.$((1 - RANK)) ]; do sleep 0.01; done; exit $((7 + TORCHELASTIC_RESTART_COUNT))"))
        self.assert_ended(job, 9)
        self.assertEqual(sorted(set(job.output.split("\n")) - {""}),
                         [f"[{rank}] {count} of 2" for rank in (0, 1) for count in range(3)])
        self.assertEqual(sorted(path.parts[-3] for path in self.folder.glob("*/*/0/stdout.log")),
                         ["attempt_0", "attempt_1", "attempt_2"])

    def test_not_when_told_to_end(self):
        with Job(run("--max-restarts", 5, "sh", "-c", "echo ready; sleep 600")) as job:
            job.read_until("[0] ready")
            job.process.terminate()
            job.finish()
            self.assert_ended(job, 128 + signal.SIGTERM)
            self.assertEqual(job.output, "")


class ProcessOne(LaunchCase):
    def ends(self, *unshare):
        for ending, status in [("exit 0", 0), ("exit 3", 3), ("sleep 600", 124)]:
            command = ["unshare", *unshare, *run("--nproc-per-node", 2, "--grace", 1, "sh", "-c", FAMILY + "echo ready; " + ending)]
            with Job(command) as job:
                job.read_until("[0] ready", "[1] ready")
                if ending == "sleep 600":
                    os.kill(worker_of(job.process.pid), signal.SIGTERM)  # unshare's child
                    status = 128 + signal.SIGTERM
                job.finish()
                self.assert_ended(job, status)
                self.assertEqual(job.running(), [])

    @unittest.skipUnless(can_unshare("--pid", "--fork", "--mount-proc"), "no PID namespaces here")
    def test_in_a_container(self):
        self.ends("--pid", "--fork", "--mount-proc")

    @unittest.skipUnless(can_unshare("--pid", "--fork"), "no PID namespaces here")
    def test_where_proc_is_another_namespaces(self):
        self.ends("--pid", "--fork")

    @unittest.skipUnless(can_unshare("--pid", "--fork", "--mount-proc"), "no PID namespaces here")
    def test_takes_the_status_of_orphans(self):
        script = self.script("import os, subprocess\n"
                             "for i in range(20): subprocess.run(['sh', '-c', 'sleep 0.01 &'])\n"
                             "def zombies(): return sum(' Z ' in open(f'/proc/{p}/stat').read() for p in os.listdir('/proc') if p.isdigit())\n"
                             "import time\nfor i in range(2000):\n"
                             "    try: left = zombies()\n"
                             "    except OSError: continue\n"
                             "    if not left: break\n"
                             "    time.sleep(0.01)\n"
                             "print(left)\n")
        self.assertEqual(self.run_job(["unshare", "--pid", "--fork", "--mount-proc", *run(script)]).output, "[0] 0\n")


if __name__ == "__main__":
    main()
