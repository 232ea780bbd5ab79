#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""What ddpp-explain makes of flight recorders' files. usage: test_ddpp_explain.py PROGRAM"""
import json
import pathlib
import subprocess
import sys
import tempfile

program = sys.argv[1]
passed = failed = 0


def check(name, good, detail=""):
    global passed, failed
    passed += good
    failed += not good
    if not good:
        print(f"FAIL {name}: {detail}")


def collective(sequence, what="all_reduce", state="done", begun=100.0):
    return {"sequence": sequence, "operation": what, "description": f"{what} #{sequence} (sum of 10 float)",
            "count": 10, "dtype": "float", "root": -1, "state": state, "running": begun, state: begun}


def message(operation, direction, peer, tag, state):
    return {"sequence": 1, "operation": operation, "peer": peer, "tag": tag, "state": state, state: 100.0,
            "description": f"{operation} #1 {direction} rank {peer} (tag {tag})"}


def explain(ranks, size=None, group="a.world"):
    """`ranks`: by rank, (collectives, messages)."""
    with tempfile.TemporaryDirectory() as directory:
        files = []
        for rank, (collectives, messages) in ranks.items():
            file = pathlib.Path(directory, f"{group}.rank{rank}.json")
            file.write_text(json.dumps({
                "ddpp_flight_recorder": 1, "group": group, "transport": "shm", "rank": rank,
                "size": size or len(ranks), "pid": 1, "written": 103.5, "reason": "SIGUSR2",
                "collectives": collectives, "messages": messages}))
            files.append(str(file))
        return subprocess.run([program, *files], capture_output=True, text=True, timeout=60)


def says(name, result, *parts):
    good = result.returncode == 0 and all(part in result.stdout for part in parts)
    check(name, good, f"{result.returncode} {result.stdout!r} {result.stderr!r} lacks one of {parts}")


here, behind = [collective(1), collective(2, state="running")], [collective(1)]
says("one has not come", explain({0: (here, []), 1: (behind, []), 2: (here, [])}),
     "rank 1 has not come to all_reduce #2", "rank 0, rank 2 have begun 3.5 s before", "Rank 1's last was all_reduce #1")
says("two have not come", explain({0: (here, []), 1: (behind, []), 2: ([], [])}),
     "rank 1, rank 2 have not come to all_reduce #2", "Rank 2's last was none")
says("one is queued", explain({0: (here, []), 1: (behind + [collective(2, state="queued")], [])}),
     "rank 1 has not come", "queued behind it")
says("one called something else",
     explain({0: (here, []), 1: ([collective(1), collective(2, "broadcast", "running")], []), 2: (here, [])}),
     "diverged at collective #2", "rank 1 called broadcast #2", "rank 0, rank 2 called all_reduce #2")
says("they diverged earlier than they stand",
     explain({0: ([collective(1), collective(2), collective(3)], []),
              1: ([collective(1), collective(2, "barrier"), collective(3, state="running")], [])}),
     "diverged at collective #2", "rank 1 called barrier #2")
says("all are in it", explain({0: (here, []), 1: (here, [])}), "All these ranks have come to all_reduce #2",
     "rank 0, rank 1 have not finished it")
says("all is well", explain({0: (behind, []), 1: (behind, [])}), "have finished the same collectives")
says("nothing was called", explain({0: ([], []), 1: ([], [])}), "No rank has begun a collective")
says("a rank without a file", explain({0: (here, []), 2: (here, [])}, size=4),
     "There is no file of rank 1, rank 3: they have died, or nobody asked")
says("a receive in vain", explain({0: ([], [message("recv", "from", 1, 7, "running")]), 1: ([], [])}),
     "Rank 0 waits in recv #1 from rank 1 (tag 7)", "rank 1 has no record of a message with that tag")
answered = explain({0: ([], [message("recv", "from", 1, 7, "running")]),
                    1: ([], [message("send", "to", 0, 7, "running")])})
check("a receive with a sender", "no record" not in answered.stdout, answered.stdout)

for name, arguments in {"no file": [], "a file that is none": [__file__], "a missing file": ["/nonexistent"]}.items():
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    check(f"refuses {name}", result.returncode != 0 and bool(result.stderr), repr(result))

print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
