#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Every header compiles alone, without warnings, and ddpp.hpp stays light.

usage: check_headers.py [--public] INCLUDE_DIR COMPILER [ARG...]      --public: not those of detail/
"""
import functools
import pathlib
import re
import subprocess
import sys

STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
HEAVY = ["iostream", "regex", "ranges", "future"]  # what ddpp.hpp must not pull in
SDK = {  # headers that need somebody else's: what must compile
    "backends/nccl.hpp": "nccl.h",
    "backends/mpi.hpp": "mpi.h",
    "adapters/torch.hpp": "torch/nn/module.h",
    "adapters/eigen.hpp": "Eigen/Core",
}
PARTS = {"detail/torch_": "adapters/torch.hpp", "detail/mpi_": "backends/mpi.hpp",
         "detail/nccl_": "backends/nccl.hpp"}  # beginnings of names

arguments = sys.argv[1:]
public_only = arguments[0] == "--public"
include, *compiler = arguments[public_only:]
include = pathlib.Path(include)
flags = STRICT + ["-pthread", f"-I{include}"]


def package_flags(*names):
    for name in names:
        found = subprocess.run(["pkg-config", "--cflags", name], capture_output=True, text=True)
        if found.returncode == 0:
            return [flag.replace("-I", "-isystem", 1) for flag in found.stdout.split()]
    return []


def compile_source(source, *arguments):
    return subprocess.run([*compiler, *flags, *arguments, "-x", "c++", "-"], input=source, capture_output=True, text=True)


sdk_flags = {
    "backends/nccl.hpp": ["-isystem/usr/local/cuda/include"],
    "adapters/eigen.hpp": package_flags("eigen3"),
    "adapters/torch.hpp": ["-isystem/usr/include/torch/csrc/api/include"],
    "backends/mpi.hpp": package_flags("mpi-cxx", "ompi-cxx", "mpich"),
}
passed = failed = skipped = 0


@functools.cache
def compiles(sdk, *extra):
    return compile_source(f"#include <{sdk}>\n", "-w", "-fsyntax-only", *extra).returncode == 0


def fail(text):
    global failed
    failed += 1
    print("FAIL", text)


for header in sorted(include.glob("ddpp/**/*.hpp")):
    name = header.relative_to(include / "ddpp").as_posix()
    if public_only and name.startswith("detail/"):
        continue
    adapter = next((sdk for part, sdk in PARTS.items() if name.startswith(part)), name)
    extra = sdk_flags.get(adapter, [])
    needed = SDK.get(adapter)
    if needed and not compiles(needed, *extra):
        skipped += 1
        print(f"skip header/{name}: no {needed} that {compiler[0]} compiles")
        continue
    text = header.read_text()
    result = compile_source(f"#include <ddpp/{name}>\n#include <ddpp/{name}>\n", "-fsyntax-only", *extra)
    if result.returncode != 0:
        fail(f"{name} does not compile alone:\n{result.stderr}")
    elif not text.startswith("// SPDX-License-Identifier: BSL-1.0\n") or "\n#pragma once\n" not in text:
        fail(f"{name} lacks its licence line or #pragma once")
    else:
        passed += 1

whole = compile_source("#include <ddpp/ddpp.hpp>\n", "-M")
found = [name for name in HEAVY if re.search(rf"/{name}\s", whole.stdout)]
if whole.returncode != 0:
    fail(f"ddpp.hpp does not compile:\n{whole.stderr}")
elif found:
    fail(f"ddpp.hpp includes {', '.join(found)}")
else:
    passed += 1

print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed != 0)
