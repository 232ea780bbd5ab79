#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""The libtorch example: its two versions differ in six lines, and both learn.

usage: test_examples.py TORCH_ALONE TORCH_PARALLEL
"""
import difflib
import os
import pathlib
import re
import secrets
import socket
import subprocess
import sys

alone, parallel = sys.argv[1:]
examples = pathlib.Path(__file__).resolve().parents[2] / "examples"
IMAGES = "6400"
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL", what)


def accuracy(text):
    found = re.fullmatch(r"epoch 1: \d+ images/s, accuracy (\d+\.\d\d) %\n", text)
    return float(found.group(1)) if found else 0


sources = [(examples / name).read_text().splitlines() for name in ("torch_alone.cpp", "torch_parallel.cpp")]
added = [line for line in difflib.ndiff(*sources) if line.startswith("+ ") and line[2:].strip()]
check(0 < len(added) <= 6, f"the data-parallel version has {len(added)} lines of its own")

one = subprocess.run([alone, "1", IMAGES], capture_output=True, text=True, timeout=120)
check(one.returncode == 0 and accuracy(one.stdout) > 65, f"alone: {one.stdout}{one.stderr}")

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
job = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DDPP_SECRET": secrets.token_hex(16)}
ranks = [subprocess.Popen([parallel, "1", IMAGES], env={**job, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
         for rank in range(2)]
try:
    texts = [rank.communicate(timeout=120)[0] for rank in ranks]
finally:
    for rank in ranks:
        rank.kill()
        rank.wait()
check([rank.returncode for rank in ranks] == [0, 0], "parallel: a rank failed")
check(accuracy(texts[0]) > 65 and texts[1] == "", f"parallel: {texts}")
sys.exit(bool(failures))
