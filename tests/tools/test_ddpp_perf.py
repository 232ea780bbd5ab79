#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""What ddpp-perf prints, writes and refuses. usage: test_ddpp_perf.py PROGRAM"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

program = sys.argv[1]
launcher_variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
clean = {name: value for name, value in os.environ.items() if name not in launcher_variables}
ROW = re.compile(r"^ +(\d+) +(\d+) +(\w+) +(\w+) +(-?\d+)((?: +[\d.]+){3} +\d+| +N/A +N/A +N/A +N/A){2}$")
passed = failed = 0


def run(arguments, **environment):
    return subprocess.run([program, *arguments.split()], capture_output=True, text=True, timeout=100,
                          env={**clean, **environment})


def check(name, good, detail=""):
    global passed, failed
    passed += good
    failed += not good
    if not good:
        print(f"FAIL {name}: {detail}")


def rows(output):
    return [ROW.match(line) for line in output.splitlines() if line and not line.startswith("#")]


def refuses(arguments, said, **environment):
    result = run(arguments, **environment)
    one_line = result.stderr.count("\n") == 1 and result.stderr.startswith("ddpp-perf: ")
    check(f"refuses '{arguments}'", result.returncode == 2 and one_line and not result.stdout and said in result.stderr,
          f"{result.returncode} {result.stdout!r} {result.stderr!r}")


refuses("", "collective")
refuses("carrier_pigeon", "all_reduce")
refuses("all_reduce --transport carrier-pigeon", "shm")
refuses("all_reduce --algorithm rung", "ring")
refuses("all_reduce --ranks 0", "--ranks")
refuses("all_reduce --ranks -1", "--ranks")
refuses("all_reduce --ranks 1000000", "--ranks")
refuses("all_reduce --ranks two", "--ranks")
refuses("all_reduce -b 8X", "8X")
refuses("all_reduce -b -8", "-8")
refuses("all_reduce -b 0", "--minbytes")
refuses("all_reduce -b 64 -e 8", "--minbytes")
refuses("all_reduce -e 99999999999999999999", "--maxbytes")
refuses("all_reduce -e 1000T", "memory")
refuses("all_reduce -b 1 -e 3", "4 bytes")
refuses("all_reduce -f 1", "--stepfactor")
refuses("all_reduce -i 0", "--stepbytes")
refuses("all_reduce -i 1", "--stepbytes")
refuses("all_reduce -f 2 -i 8", "--stepfactor")
refuses("all_reduce -n 0", "--iters")
refuses("all_reduce -d complex", "bfloat16")
refuses("all_reduce -o xor", "sum")
refuses("all_reduce -d int32 --algorithm ring", "automatic")
refuses("broadcast --ranks 2 --root 2", "--root")
refuses("all_reduce -J /nonexistent/file.json", "/nonexistent/file.json")
refuses("all_reduce -J /", "directory")
refuses("all_reduce --algorithm direct", "ring")
refuses("reduce --algorithm bruck", "scatter_gather")
refuses("barrier --algorithm ring", "dissemination")
refuses("sendrecv --algorithm ring", "automatic")
refuses("barrier --plot /tmp/nothing.svg", "bandwidth")
refuses("all_reduce --ranks 1 --plot /tmp/nothing.svg", "bandwidth")
refuses("all_reduce --plot /tmp/nothing.svg", "gnuplot", PATH="/nonexistent")
refuses("all_reduce --unheard-of", "--unheard-of")
refuses("all_reduce", "WORLD_SIZE", RANK="0")
refuses("all_reduce --ranks 2", "--ranks", RANK="0", WORLD_SIZE="1")

small = "--ranks 3 -b 8 -e 64K -f 16 -n 2 -w 1 -c 2"
transports = ("threads", "shm", "tcp")
algorithms = {
    "all_reduce": "automatic ring recursive_doubling halving_doubling tree reproducible",
    "reduce_scatter": "automatic ring halving_doubling", "reduce_scatter_v": "automatic ring halving_doubling",
    "all_gather": "automatic ring bruck", "all_gather_v": "automatic ring bruck",
    "broadcast --root 2": "automatic ring tree scatter_gather", "reduce --root 1": "automatic tree scatter_gather",
    "gather --root 2": "automatic tree direct", "gather_v --root 2": "automatic tree direct",
    "scatter --root 1": "automatic tree direct", "scatter_v --root 1": "automatic tree direct",
    "all_to_all": "automatic bruck direct", "all_to_all_v": "automatic bruck direct",
    "sendrecv": "automatic", "barrier": "automatic dissemination"}
TABLE = re.compile(r"^# ddpp-perf .* transport (\w+), algorithm (\w+)$", re.MULTILINE)
COMPARED = re.compile(r"^ +\d+(?: +[\d.]+[* ])+$")
for collective, names in algorithms.items():
    result = run(f"{collective} --transport all --algorithm all {small}")
    tables = [(transport, name) for transport in transports for name in names.split()]
    measured, comparison = result.stdout.split(", comparison: ") if "comparison" in result.stdout else (result.stdout, "")
    sizes = 1 if collective == "barrier" else 4 if collective.split()[0] in ("all_reduce", "broadcast", "reduce", "sendrecv") else 3
    found = rows(measured)
    check(f"{collective}: every transport and algorithm",
          result.returncode == 0 and TABLE.findall(measured) == tables and len(found) == len(tables) * sizes and all(found)
          and measured.count("# Out of bounds values : 0 OK") == len(tables),
          f"{result.returncode} {result.stdout} {result.stderr}")
    compared = [line for line in comparison.splitlines()[1:] if line and not line.startswith("#")]
    cells = sum(len(line.split()) - 1 for line in compared)
    check(f"{collective}: the comparison", all(COMPARED.match(line) for line in compared) and
          cells == len(tables) * sizes and comparison.count("*") == sizes + 1 and
          max(map(len, comparison.splitlines()[1:])) <= 120, comparison)

for type_name in ("float", "double", "half", "bfloat16", "int32", "int64", "uint8"):
    for op in ("sum", "prod", "min", "max", "avg"):
        result = run(f"all_reduce --transport threads -d {type_name} -o {op} {small}")
        found = rows(result.stdout)
        check(f"{op} of {type_name}", result.returncode == 0 and all(found) and
              all(row[3] == type_name and row[4] == op for row in found), f"{result.stdout} {result.stderr}")

with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "out.json"
    result = run(f"reduce_scatter --transport shm --ranks 4 -b 64 -e 256 -i 64 -n 3 -J {file}")
    content = json.loads(file.read_text()) if file.exists() else {}
    table = content.get("tables", [{}])[0]
    sizes = [row["size"] for row in table.get("rows", [])]
    counts = [row["count"] for row in table.get("rows", [])]
    check("JSON", (sizes, counts) == ([64, 128, 192, 256], [4, 8, 12, 16]) and table["transport"] == "shm" and
          table["ranks"] == 4 and table["wrong"] == 0 and content["iters"] == 3, f"{content} {result.stderr}")
    first = table["rows"][0]["in_place"]
    check("algbw and busbw", abs(first["algbw"] * first["time_us"] * 1e3 / 64 - 1) < 1e-9 and
          abs(first["busbw"] / first["algbw"] - 0.75) < 1e-9, f"{first}")
    check("nothing else is left", os.listdir(folder) == ["out.json"], f"{os.listdir(folder)}")

with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "out.json"
    result = run(f"broadcast --transport threads --algorithm all --ranks 2 -b 64 -e 256 -n 3 -J {file}")
    comparison = json.loads(file.read_text()).get("comparison", {})
    columns = ["threads automatic", "threads ring", "threads tree", "threads scatter_gather"]
    check("the comparison in JSON", comparison["columns"] == columns and [row["size"] for row in comparison["rows"]] == [64, 256]
          and all(columns[row["time_us"].index(min(row["time_us"]))] == row["fastest"] for row in comparison["rows"]),
          f"{comparison} {result.stderr}")

skipped = 0
if shutil.which("gnuplot"):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "it's a plot.svg"
        result = subprocess.run([program, *"all_gather --transport all --algorithm all --ranks 2 -e 64K -n 2 --plot".split(), file],
                                capture_output=True, text=True, timeout=100, env=clean)
        picture = file.read_text() if file.exists() else ""
        said = ("all_gather of float, 2 ranks", "size (bytes)", "bus bandwidth (GB/s)", "shm, bruck", "tcp, automatic", "32 Ki")
        check("the plot", result.returncode == 0 and not result.stderr and all(text in picture for text in said)
              and picture.startswith("<?xml") and picture.rstrip().endswith("</svg>"), f"{result.stderr} {picture[:300]}")
        check("nothing but the plot is left", os.listdir(folder) == [file.name], f"{os.listdir(folder)}")
        refuses(f"all_reduce --plot {folder}/none/out.svg", "none/out.svg")
else:
    skipped = 1
    print("skip ddpp-perf/plot: no gnuplot")

result = run("all_reduce --transport tcp -e 64", RANK="0", WORLD_SIZE="1")
check("a launcher's world", result.returncode == 0 and "1 rank " in result.stdout, result.stderr)

print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed != 0)
