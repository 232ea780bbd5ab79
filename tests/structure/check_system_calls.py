#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""After init, shm moves data without system calls that carry data; tcp, the control, with them.

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


def calls_between_marks(trace):
    """By rank: the system calls that carried data."""
    ranks = []
    for file in sorted(trace.parent.glob(trace.name + ".*")):
        text = file.read_text()
        if "the exchange begins" in text and "the exchange ends" in text:
            between = text.split("the exchange begins", 1)[1].split("the exchange ends", 1)[0]
            ranks.append([name for name in re.findall(r"^(\w+)\(", between, re.MULTILINE) if name in DATA])
    return ranks


def traced(transport):
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace"
        names = ",".join(["chdir", *(f"?{name}" for name in DATA)])
        run = subprocess.run(["strace", "-ff", "-o", str(trace), "-e", f"trace={names}", sys.argv[1], transport],
                             capture_output=True, text=True, timeout=100)
        return run, calls_between_marks(trace)


if not shutil.which("strace") or subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
    print("skip system_calls: no strace, or no right to trace\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)

failed = 0
for transport, right in (("shm", lambda calls: not calls), ("tcp", lambda calls: len(calls) > 10)):
    run, ranks = traced(transport)
    if run.returncode != 0 or len(ranks) != 2 or not all(right(calls) for calls in ranks):
        failed += 1
        print(f"FAIL {transport}: exit status {run.returncode}, data moved by {[calls[:10] for calls in ranks]}\n{run.stderr}")
print(f"{2 - failed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
