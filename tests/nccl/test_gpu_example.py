#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""The example for CUDA devices has the curve of the one for CPUs, with any number of ranks.

usage: test_gpu_example.py PROGRAM_ON_THE_DOUBLE CPU_PROGRAM FASHION_MNIST
"""
import gzip
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

program, cpu_program, data = sys.argv[1:]
if not pathlib.Path(data).is_dir():
    print(f"skipped: there is no {data}")
    sys.exit(77)


def shorten(to):
    """The first images alone: loops of the double's take seconds for what a device does in milliseconds."""
    for which, count in (("train", 1001), ("t10k", 250)):
        for kind, head, size in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
            name = f"{which}-{kind}-ubyte.gz"
            with gzip.open(f"{data}/{name}") as whole:
                content = whole.read(head + count * size)
            (to / name).write_bytes(content[:4] + struct.pack(">I", count) + content[8:])


def run(*command, **environment):
    result = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=200, env={**os.environ, **environment})
    print(*command, environment, result.stdout, result.stderr, sep="\n")
    return result


def curve(*command, **environment):
    result = run(*command, **environment)
    assert result.returncode == 0, f"exit {result.returncode}"
    found = [(float(loss), float(accuracy)) for loss, accuracy in re.findall(r"^ +\d+ +([\d.]+) +([\d.]+) %", result.stdout, re.M)]
    assert len(found) == 2, found
    return found


def same(some, others, loss_tolerance, accuracy_tolerance):
    return all(abs(a - b) < loss_tolerance and abs(right - also_right) <= accuracy_tolerance
               for (a, right), (b, also_right) in zip(some, others))


with tempfile.TemporaryDirectory() as small:
    shorten(pathlib.Path(small))
    arguments = ["--data", small, "--epochs", 2, "--precision"]
    expected = curve(cpu_program, *arguments, "double", "--ranks", 1)
    assert expected[1][0] < expected[0][0] - 0.2, "it does not learn"
    for devices in 1, 2, 3:  # 3: the ranks' shares of a batch differ
        assert same(expected, curve(program, *arguments, "double", "--devices", devices), 1e-9, 0), f"{devices} devices"
    assert same(expected, curve(program, *arguments, "float", "--devices", 2), 1e-3, 0.5), "float"
    launched = {"RANK": "0", "WORLD_SIZE": "1"}  # the double has one process
    assert same(expected, curve(program, *arguments, "double", **launched), 1e-9, 0), "under a launcher"
    refused = run(program, "--data", small, "--devices", 1, **launched)
    assert refused.returncode == 1 and "a launcher has started this rank" in refused.stderr
    for wrong in (["--data", "/nowhere"], ["--devices", 0], ["--epochs"], ["--colour", "red"], ["--data", small, "--devices", 9]):
        refused = run(program, *wrong)
        assert refused.returncode == 1 and "cuda_fashion_mnist: " in refused.stderr, wrong
