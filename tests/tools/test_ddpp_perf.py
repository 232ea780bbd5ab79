#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""What ddpp-perf prints, writes and refuses. usage: test_ddpp_perf.py PROGRAM"""
import json
import os
import pathlib
import re
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
refuses("all_reduce --unheard-of", "--unheard-of")
refuses("all_reduce", "WORLD_SIZE", RANK="0")
refuses("all_reduce --ranks 2", "--ranks", RANK="0", WORLD_SIZE="1")

small = "--ranks 3 -b 8 -e 64K -f 16 -n 2 -w 1 -c 2"
for transport in ("threads", "shm", "tcp"):
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "broadcast --root 2", "reduce --root 1",
                       "gather --root 2", "scatter --root 1", "all_to_all", "sendrecv"):
        result = run(f"{collective} --transport {transport} {small}")
        found = rows(result.stdout)
        check(f"{collective} over {transport}", result.returncode == 0 and len(found) >= 3 and all(found) and
              "# Out of bounds values : 0 OK" in result.stdout, f"{result.returncode} {result.stdout} {result.stderr}")

result = run(f"all_reduce --transport threads --algorithm all {small}")
check("all algorithms", result.returncode == 0 and result.stdout.count("# Avg bus bandwidth") == 6, result.stderr)

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

result = run("all_reduce --transport tcp -e 64", RANK="0", WORLD_SIZE="1")
check("a launcher's world", result.returncode == 0 and "1 rank " in result.stdout, result.stderr)

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
