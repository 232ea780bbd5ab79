#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""After init, shm moves data without system calls that carry data; tcp, the control, with them: a small message with one
each way, besides tries that found nothing.

usage: check_system_calls.py PROGRAM      (payload.cpp; needs strace and the right to trace)
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

DATA = ("read readv pread64 preadv preadv2 recvfrom recvmsg recvmmsg process_vm_readv write writev pwrite64 pwritev pwritev2 "
        "sendto sendmsg sendmmsg process_vm_writev sendfile splice vmsplice tee copy_file_range io_uring_enter").split()


def calls_between(text, begin, end):
    """The system calls between two marks that carried data."""
    between = text.split(f"the {begin}", 1)[1].split(f"the {end}", 1)[0]
    return [name for name, result in re.findall(r"^(\w+)\(.*\) += (-?\d+)", between, re.MULTILINE)
            if name in DATA and int(result) > 0]


def calls_of_ranks(trace):
    """By rank: those of the exchange, and of the small messages."""
    texts = [file.read_text() for file in sorted(trace.parent.glob(trace.name + ".*"))]
    return [(calls_between(text, "exchange begins", "exchange ends"),
             calls_between(text, "small messages begin", "small messages end"))
            for text in texts if "the exchange begins" in text and "the small messages end" in text]


def traced(transport):
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace"
        names = ",".join(["chdir", *(f"?{name}" for name in DATA)])
        run = subprocess.run(["strace", "-ff", "-o", str(trace), "-e", f"trace={names}", sys.argv[1], transport],
                             capture_output=True, text=True, timeout=100)
        return run, calls_of_ranks(trace)


if not shutil.which("strace") or subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
    print("skip system_calls: no strace, or no right to trace\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)

failed = 0
for transport, right in (("shm", lambda exchange, small: not exchange and not small),
                         ("tcp", lambda exchange, small: len(exchange) > 10 and sorted(small) == ["recvmsg"] * 100 + ["sendmsg"] * 100)):
    run, ranks = traced(transport)
    if run.returncode != 0 or len(ranks) != 2 or not all(right(*calls) for calls in ranks):
        failed += 1
        calls = [(exchange[:10], {name: small.count(name) for name in set(small)}) for exchange, small in ranks]
        print(f"FAIL {transport}: exit status {run.returncode}, data moved by {calls}\n{run.stderr}")
print(f"{2 - failed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
