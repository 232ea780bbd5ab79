#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""ddpp-run on three hosts: what differs from several on one.

usage: test_nodes_on_hosts.py DDPP_RUN RANK
"""
import contextlib
import os
import pathlib
import re
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "hosts"))
import hosts  # noqa: E402
from launching import FULL, Job, LaunchCase, main, skip_all  # noqa: E402

DDPP_RUN, RANK = map(os.path.abspath, sys.argv[1:3])


class NodesOnHosts(LaunchCase):
    def setUp(self):
        super().setUp()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.network = stack.enter_context(hosts.Network())
        self.jobs = stack.enter_context(contextlib.ExitStack())

    def start(self, *arguments, endpoint="b:29400", on=(0, 1, 2), numbered=True, secret="of this job"):
        """One node per host."""
        jobs = []
        for node, host in enumerate(self.network.hosts[i] for i in on):
            number = ["--node-rank", node] if numbered else []
            command = host.command("setpriv", "--pdeathsig", "KILL", DDPP_RUN, "--nnodes", len(on), *number, "--rdzv-endpoint",
                                   endpoint, "--rdzv-conf", "timeout=50", "--grace", 1, *arguments)
            jobs.append(self.jobs.enter_context(Job(command, {"TMPDIR": str(self.folder), **({"DDPP_SECRET": secret} if secret else {})})))
        return jobs

    def finish(self, jobs, *statuses):
        for job in jobs:
            job.finish()
        said = "\n".join(f"--- {job.status}\n{job.output}{job.errors}" for job in jobs)
        self.assertEqual([job.status for job in jobs], list(statuses), said)

    def assert_all_met(self, jobs):
        self.finish(jobs, 0, 0, 0)
        self.assertEqual(sorted(re.findall(r"rank (\d) of 6 .* sum 15", "".join(job.output for job in jobs))), list("012345"))

    def test_hosts_meet(self):
        for endpoint in ("b:29400", self.network.hosts[2].ipv4 + ":29400", f"[{self.network.hosts[0].ipv6}]:29400"):
            self.assert_all_met(self.start("--nproc-per-node", 2, RANK, endpoint=endpoint))
        self.assert_all_met(self.start("--nproc-per-node", 2, RANK, numbered=False))

    def test_own_names_are_loopback(self):
        self.network.write_hosts(own_name_is_loopback=True)
        self.assert_all_met(self.start("--nproc-per-node", 2, RANK))

    def test_node_0_need_not_serve_the_store(self):
        jobs = self.start("sh", "-c", "echo $MASTER_ADDR $DDPP_INIT_METHOD")
        self.finish(jobs, 0, 0, 0)
        address = self.network.hosts[0].ipv4
        for i, job in enumerate(jobs):
            self.assertRegex(job.output, rf"^\[{i}\] {address} tcp://{address}:\d+\n$")

    def test_all_start_again(self):
        jobs = self.start("--max-restarts", 1, RANK, "die")
        self.finish(jobs, 0, 0, 0)
        for job in jobs:
            self.assertEqual(job.output.count("of 3 local"), 2)

    def test_failure_on_one_host_ends_all(self):
        self.finish(self.start("sh", "-c", "[ $RANK = 2 ] && exit 7; sleep 600"), 7, 7, 7)

    def test_secret_is_needed(self):
        for job in self.start("true", secret=None):
            job.finish()
            self.assert_ended(job, 1)
            self.assertIn("set DDPP_SECRET", job.errors)

    def test_host_that_dies(self):
        jobs = self.start("sh", "-c", "echo ready; sleep 600")
        for i, job in enumerate(jobs):
            job.read_until(f"[{i}] ready")
        self.network.hosts[2].kill()
        self.finish(jobs[:2], 1, 1)
        for job in jobs[:2]:
            self.assertIn("lost node 2: ddpp-run on c", job.errors)

    def test_short_silence_of_the_host_that_serves(self):
        jobs = self.start("sh", "-c", 'echo ready; until [ -e "$TMPDIR/go" ]; do sleep 0.1; done')
        for i, job in enumerate(jobs):
            job.read_until(f"[{i}] ready")
        self.network.hosts[1].cut()
        time.sleep(10)
        self.network.hosts[1].mend()
        (self.folder / "go").touch()
        self.finish(jobs, 0, 0, 0)

    if FULL:  # a host that says nothing is missed after 30 s
        def test_host_that_is_cut_off(self):
            jobs = self.start("sh", "-c", "echo ready; sleep 600")
            for i, job in enumerate(jobs):
                job.read_until(f"[{i}] ready")
            self.network.hosts[2].cut()
            self.finish(jobs, 1, 1, 1)
            self.assertIn("lost node 2: ddpp-run on c", jobs[0].errors)
            self.assertIn("lost the node that serves b:29400", jobs[2].errors)


if __name__ == "__main__":
    if why_not := hosts.reason_against():
        skip_all(why_not)
    hosts.move_in()
    main(at_a_time=1)
