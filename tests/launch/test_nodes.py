#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Several ddpp-run, as if on several nodes: how they meet, whom they refuse, and that one's failure ends all.

usage: test_nodes.py DDPP_RUN RANK
All nodes are on this host's loopback; test_nodes_on_hosts.py has what differs between hosts.
"""
import contextlib
import os
import signal
import socket
import sys

from launching import Job, LaunchCase, main, wait_until

DDPP_RUN, RANK = map(os.path.abspath, sys.argv[1:3])


def free_port():
    """Bound for a moment, so that nobody else is given it soon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nodes(LaunchCase):
    def setUp(self):
        super().setUp()
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.jobs = contextlib.ExitStack()
        self.addCleanup(self.jobs.close)

    def start(self, *arguments, nodes=3, environment=None):
        command = [DDPP_RUN, "--nnodes", nodes, "--rdzv-endpoint", self.endpoint, "--rdzv-conf", "timeout=50", *arguments]
        return self.jobs.enter_context(Job(command, {"TMPDIR": str(self.folder), **(environment or {})}))

    def finish(self, jobs, *statuses):
        for job in jobs:
            job.finish()
        said = "\n".join(f"--- {job.status}\n{job.output}{job.errors}" for job in jobs)
        self.assertEqual([job.status for job in jobs], list(statuses), said)
        for job in jobs:
            self.assertEqual(job.running(), [], "processes that are left")

    def test_in_any_order(self):
        for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
            jobs = [self.start("--nproc-per-node", node + 1, "--node-rank", node, RANK) for node in order]
            self.finish(jobs, 0, 0, 0)
            lines = sorted(line.split("] ")[1] for job in jobs for line in job.output.splitlines())
            self.assertEqual(lines, ["rank 0 of 6 local 0 of 1 sum 15", "rank 1 of 6 local 0 of 2 sum 15",
                                     "rank 2 of 6 local 1 of 2 sum 15", "rank 3 of 6 local 0 of 3 sum 15",
                                     "rank 4 of 6 local 1 of 3 sum 15", "rank 5 of 6 local 2 of 3 sum 15"])

    def test_numbers_by_arrival(self):
        jobs = [self.start("sh", "-c", "echo $RANK $GROUP_RANK of $GROUP_WORLD_SIZE") for _ in range(3)]
        self.finish(jobs, 0, 0, 0)
        self.assertEqual(sorted(job.output for job in jobs), [f"[{i}] {i} {i} of 3\n" for i in range(3)])

    def test_master_address_instead_of_an_endpoint(self):
        host, port = self.endpoint.split(":")
        jobs = [self.jobs.enter_context(Job([DDPP_RUN, "--nnodes=2", "--master_addr", host, "--master_port", port,
                                             "--node_rank", node, "--nproc_per_node=2", RANK])) for node in (1, 0)]
        self.finish(jobs, 0, 0)

    def test_late(self):
        first = self.start("--node-rank", 1, RANK, nodes=2)
        wait_until(lambda: self.listens(), lambda: "nobody listens")
        self.finish([self.start("--node-rank", 0, RANK, nodes=2), first], 0, 0)

    def listens(self):
        host, port = self.endpoint.split(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
            return True
        except OSError:
            return False

    def two_of_one_number(self, nodes):
        """Starts node 1 twice. One is refused; returns the other, which has come for sure then, while the store stays
        where it is: if it was the refused one's, all over again."""
        here = self.start("--node-rank", 1, RANK, nodes=nodes)
        while True:
            wait_until(self.listens, lambda: "nobody listens")
            twins = [here, self.start("--node-rank", 1, RANK, nodes=nodes)]
            wait_until(lambda: any(job.process.poll() is not None for job in twins), lambda: "none is refused")
            refused, other = sorted(twins, key=lambda job: job.process.returncode is None)
            self.finish([refused], 1)
            self.assertIn("this node has come twice: node 1 is", refused.errors)
            if other is here:
                return other
            here = other

    def test_second_of_a_number_is_refused(self):
        other = self.two_of_one_number(nodes=2)
        self.finish([self.start("--node-rank", 0, RANK, nodes=2), other], 0, 0)

    def test_one_too_many_is_refused(self):
        jobs = [self.start("sh", "-c", f"touch {self.folder}/rank.$RANK; until [ -e {self.folder}/go ]; do sleep 0.02; done", nodes=2)
                for _ in range(2)]
        wait_until(lambda: len(list(self.folder.glob("rank.*"))) == 2, lambda: "they have not started")
        extra = self.start("true", nodes=2)
        self.finish([extra], 1)
        self.assertIn("all nodes have come already: node 0 is", extra.errors)
        (self.folder / "go").touch()
        self.finish(jobs, 0, 0)

    def test_node_that_left_before_all_had_come_is_replaced(self):
        waiting = self.start("--node-rank", 0, RANK)
        wait_until(self.listens, lambda: "nobody listens")
        gone = self.two_of_one_number(nodes=3)
        gone.process.terminate()
        self.finish([gone], 128 + signal.SIGTERM)
        self.finish([self.start("--node-rank", 1, RANK), self.start("--node-rank", 2, RANK), waiting], 0, 0, 0)

    def test_missing_node_is_named(self):
        jobs = [self.start("--node-rank", node, "--rdzv-conf", "timeout=5", "true") for node in (0, 2)]
        self.finish(jobs, 1, 1)
        for job in jobs:
            self.assertRegex(job.errors, r"node 1 has not come within 5 s; there are node 0 on .*, node 2 on ")

    def test_nobody_serves(self):
        self.endpoint = f"192.0.2.1:{free_port()}"  # nobody's: RFC 5737
        job = self.start("--rdzv-conf", "timeout=1", "true", environment={"DDPP_SECRET": "x"})
        self.finish([job], 1)
        self.assertIn("nobody serves 192.0.2.1:", job.errors)

    def test_secret_is_needed_between_hosts(self):
        self.endpoint = "192.0.2.1:29400"
        job = self.start("true")
        self.finish([job], 1)
        self.assertIn("set DDPP_SECRET", job.errors)

    def test_other_secret_is_refused(self):
        first = self.start("sh", "-c", "exit 0", nodes=2, environment={"DDPP_SECRET": "right"})
        wait_until(self.listens, lambda: "nobody listens")
        wrong = self.start("true", nodes=2, environment={"DDPP_SECRET": "wrong"})
        self.finish([wrong], 1)
        self.finish([self.start("true", nodes=2, environment={"DDPP_SECRET": "right"}), first], 0, 0)

    def test_nodes_must_agree(self):
        first = self.two_of_one_number(nodes=2)
        for arguments, nodes, says in [(["--rdzv-id", "b"], 2, "--rdzv-id none, this one has b"), ([], 3, "--nnodes 2, this one has 3")]:
            other = self.start(*arguments, "true", nodes=nodes)
            self.finish([other], 1)
            self.assertIn(says, other.errors)
        self.finish([self.start("--node-rank", 0, RANK, nodes=2), first], 0, 0)

    def test_failure_of_one_ends_all(self):
        jobs = [self.start("--node-rank", node, "--nproc-per-node", 2, "--grace", 5, "sh", "-c",
                           "[ $RANK = 3 ] && { echo it broke >&2; exit 9; }; sleep 600") for node in range(3)]
        self.finish(jobs, 9, 9, 9)
        for job in jobs:
            self.assertRegex(job.errors, r"rank 3 failed first: exit code 9 \(local rank 1 of node 1, .*\n.*\n  \| it broke")

    def test_one_that_lost_a_rank_elsewhere_is_not_the_first(self):
        jobs = [self.start("--node-rank", node, RANK, "throw") for node in range(3)]
        self.finish(jobs, 1, 1, 1)
        for job in jobs:
            self.assertIn("rank 1 failed first", job.errors)

    def test_one_that_follows_waits_for_the_first(self):
        follower = '{"message": {"message": "lost it", "extraInfo": {"ddpp_follows_another": "1"}}}'
        jobs = [self.start("--node-rank", node, "sh", "-c",
                           f"if [ $RANK = 1 ]; then echo '{follower}' > $TORCHELASTIC_ERROR_FILE; touch {self.folder}/gone; exit 1; fi; "
                           f"until [ -e {self.folder}/gone ]; do sleep 0.01; done; sleep 0.05; exit 6", nodes=2) for node in (0, 1)]
        self.finish(jobs, 6, 6)

    def test_all_start_again(self):
        jobs = [self.start("--node-rank", node, "--nproc-per-node", 2, "--max-restarts", 1, RANK, "die") for node in range(3)]
        self.finish(jobs, 0, 0, 0)
        for job in jobs:
            self.assertEqual(job.output.count("of 6 local"), 4)

    def test_told_to_end(self):
        for node in (0, 2):
            jobs = [self.start("--node-rank", i, "--max-restarts", 3, "sh", "-c", "echo ready; sleep 600") for i in range(3)]
            for i, job in enumerate(jobs):
                job.read_until(f"[{i}] ready")
            jobs[node].process.terminate()
            self.finish(jobs, 143, 143, 143)
            for job in jobs:
                self.assertRegex(job.errors, rf"node {node} \(.*\): SIGTERM has ended the job")

    def test_told_to_end_while_waiting(self):
        job = self.start("true")
        wait_until(self.listens, lambda: "nobody listens")
        job.process.send_signal(signal.SIGINT)
        self.finish([job], 130)

    def test_lost_node_is_named(self):
        for node in (0, 2):  # the one that serves the store, and another
            jobs = [self.start("--node-rank", 0, "sh", "-c", "echo ready; sleep 600")]
            wait_until(self.listens, lambda: "nobody listens")
            jobs += [self.start("--node-rank", i, "sh", "-c", "echo ready; sleep 600") for i in (1, 2)]
            for i, job in enumerate(jobs):
                job.read_until(f"[{i}] ready")
            lost = jobs.pop(node)
            for number in (signal.SIGSTOP, signal.SIGKILL):  # all at once, as if its host had stopped
                for pid in lost.running():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            self.finish(jobs, 1, 1)
            for job in jobs:
                self.assertRegex(job.errors, "lost the node that serves" if node == 0 else f"lost node {node}: ddpp-run on ")

    def test_a_new_job_at_the_same_place_at_once(self):
        for _ in range(3):
            self.finish([self.start("--rdzv-id", "same", RANK, nodes=2) for _ in range(2)], 0, 0)

    def test_strangers_at_the_endpoint(self):
        first = self.start(RANK, nodes=2)
        wait_until(self.listens, lambda: "nobody listens")
        host, port = self.endpoint.split(":")
        with contextlib.ExitStack() as strangers:
            for words in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(1000)):
                stranger = strangers.enter_context(socket.create_connection((host, int(port))))
                with contextlib.suppress(OSError):
                    stranger.sendall(words)
            self.finish([self.start(RANK, nodes=2), first], 0, 0)


if __name__ == "__main__":
    main()
