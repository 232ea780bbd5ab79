#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""The examples learn, and one rank and two learn the same. usage: test_examples.py FOLDER PROGRAM...

Each PROGRAM (in FOLDER) has a function of its name here, and runs with so little to do that it takes seconds.
"""
import pathlib
import re
import subprocess
import sys

folder = pathlib.Path(sys.argv[1])
needed = [pathlib.Path("/usr/share/datasets/fashion-mnist"), pathlib.Path("/usr/share/common-licenses")]


def run(program, *arguments):
    result = subprocess.run([folder / program, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=200)
    print(program, *arguments)
    print(result.stdout, result.stderr)
    assert result.returncode == 0, f"{program} {arguments}: exit {result.returncode}"
    return result.stdout


def refuses(program, *arguments):
    result = subprocess.run([folder / program, *map(str, arguments)], capture_output=True, text=True, timeout=200)
    assert result.returncode in (1, 2) and program in result.stderr, (program, arguments, result)


def numbers(pattern, text):
    return [float(number) for number in re.findall(pattern, text)]


def close(some, others, tolerance):
    return len(some) == len(others) > 0 and all(abs(a - b) < tolerance for a, b in zip(some, others))


def character_transformer():
    alone = run("character_transformer_alone", 60)
    losses = numbers(r"loss ([\d.]+)", alone)
    assert len(losses) == 10 and losses[-1] < losses[0] - 0.7, losses
    for ranks in 1, 2, 4:
        together = run("character_transformer", ranks, 60)
        assert close(losses, numbers(r"loss ([\d.]+)", together), 0.002)
        assert numbers(r"([\d.]+) characters/s", together)[0] > 0
        assert len(together.split("The ", 1)[1]) >= 200, "no sample"
    refuses("character_transformer", 3)


def moco():
    results = [run("moco", ranks, 4, 2560) for ranks in (1, 2)]
    for result in results:
        losses = numbers(r"loss ([\d.]+)", result)
        pixels, untrained, *trained = numbers(r"([\d.]+) %", result)
        assert len(losses) == len(trained) == 4
        assert losses[-1] < losses[1] - 0.3, "no loss falls (the first epoch has a queue of noise)"
        assert trained[-1] > max(pixels, untrained) + 2, "it finds no better neighbours than pixels do"
    for pattern, tolerance in ((r"loss ([\d.]+)", 0.01), (r"([\d.]+) %", 1)):
        assert close(*[numbers(pattern, result) for result in results], tolerance), pattern
    refuses("moco", 3)


def eigen_network():
    one, two = numbers(r"loss ([\d.]+)", run("eigen_network", 512))
    assert abs(one - two) < 0.001 and one < 2.27  # ln 10 at first
    refuses("eigen_network", 100)


def own_tensor():
    slope, offset = numbers(r"([+-]?\d\.\d+)", run("own_tensor"))
    assert abs(slope - 3) < 0.1 and abs(offset + 2) < 0.1


missing = [str(path) for path in needed if not path.is_dir()]
if missing:
    print("skipped: there is no", *missing)
    sys.exit(77)
for name in sys.argv[2:]:
    globals()[name]()
print(f"{len(sys.argv) - 2} passed, 0 failed, 0 skipped")
