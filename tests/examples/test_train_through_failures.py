#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""The curve goes on, whoever is lost, and is the same. usage: test_train_through_failures.py PROGRAM DATA"""
import pathlib
import subprocess
import sys

program, data = sys.argv[1:]
if not pathlib.Path(data).is_dir():
    print(f"skipped: there is no {data}")
    sys.exit(77)


def losses(*arguments):
    result = subprocess.run([program, "--data", data, *arguments], capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        sys.exit(f"{arguments}: exit {result.returncode}: {result.stdout}{result.stderr}")
    print(arguments, result.stdout, sep="\n")
    found = {}
    for line in result.stdout.splitlines():
        if line.startswith("epoch "):
            epoch, loss = line.removeprefix("epoch ").split(" (")[0].split(": loss ")
            found[int(epoch)] = float(loss)
    return found, result.stdout


calm, said = losses("--epochs", "4", "--out-of-memory", "-1", "--killed", "-1")
assert "go on" not in said and list(calm) == [1, 2, 3, 4], said
for transport, killed in (("shm", 0), ("tcp", 2)):
    stormy, said = losses("--epochs", "4", "--transport", transport, "--killed", str(killed))
    assert "out of memory: 4 ranks go on from epoch 2" in said, said
    assert "a rank was lost: 3 ranks go on from epoch 4" in said and "(3 ranks, batch 128)" in said, said
    assert list(stormy) == [1, 2, 3, 4] and stormy[1] == calm[1], said
    assert all(stormy[epoch + 1] < stormy[epoch] for epoch in (1, 2, 3)), said
    assert abs(stormy[4] - calm[4]) < 0.03, said
