#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""A job over tcp whose system calls fail, are interrupted and do less than they were asked for (unreliable_system.cpp).

usage: test_unreliable_system.py LIBRARY RANK_PROGRAM [FIRST_SEED LAST_SEED]

What a system may do at any time changes nothing. What is a failure ends as a named error or not at all: right sums on all
ranks, or an error of ddpp's; never a hang, a crash or a wrong sum. DDPP_TEST_FULL: hundreds of seeds.
"""
import os
import re
import socket
import subprocess
import sys
import time

LIBRARY, PROGRAM = sys.argv[1:3]
FULL = os.environ.get("DDPP_TEST_FULL", "") != ""
SEEDS = range(int(sys.argv[3]), int(sys.argv[4]) + 1) if len(sys.argv) > 3 else range(1, 301 if FULL else 9)
RANKS = 3
LIMIT = 90  # seconds for one job
HARMLESS = "short,interrupt,again"
HARMFUL = HARMLESS + ",reset,descriptors"
ERROR = re.compile(r"^(peer_lost|timeout_error|error): .+", re.MULTILINE)


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def job(seed, faults):
    """(exit status or None, output) of each rank."""
    environment = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "DDPP_SECRET": "of this job", "LD_PRELOAD": LIBRARY, "DDPP_TEST_SEED": str(seed), "DDPP_TEST_FAULTS": faults}
    timeout = "30" if faults == HARMLESS else "5"  # seconds; those that may fail need not wait for long
    ranks = [subprocess.Popen([PROGRAM, "meet", timeout], env={**environment, "RANK": str(rank)}, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(RANKS)]
    try:
        for rank in ranks:
            try:
                rank.stdin.write("sum\nsum\n")
                rank.stdin.close()
            except BrokenPipeError:
                pass
            rank.stdin = None
        until = time.monotonic() + LIMIT
        outcomes = []
        for rank in ranks:
            try:
                said = rank.communicate(timeout=max(0.1, until - time.monotonic()))[0]
                outcomes.append((rank.returncode, said))
            except subprocess.TimeoutExpired:
                outcomes.append((None, ""))
        return outcomes
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def is_right(outcome):
    return outcome[0] == 0 and outcome[1].count("summed") == 2


def is_named(outcome):
    return outcome[0] == 3 and ERROR.search(outcome[1]) and "wrong sum" not in outcome[1]


def main():
    failed, survived = 0, 0
    for seed in SEEDS:
        for faults in (HARMLESS, HARMFUL):
            outcomes = job(seed, faults)
            right = [is_right(each) for each in outcomes]
            survived += faults == HARMFUL and all(right)
            if not all(right) and (faults == HARMLESS or not all(is_right(each) or is_named(each) for each in outcomes)):
                failed += 1
                print(f"seed {seed}, {faults}: " + "".join(f"\n  rank {r}: {each}" for r, each in enumerate(outcomes)), flush=True)
    print(f"of {len(SEEDS)} jobs with failures {survived} came to a good end")
    print(f"{2 * len(SEEDS) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


sys.exit(main())
