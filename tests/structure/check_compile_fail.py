#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Misuse does not compile, and the compiler's message says why.

Each program of compile_fail/ compiles as it is, and with -DWRONG fails with a message that contains what its lines
"// expect: REGULAR EXPRESSION" say. One with a line "// needs: PACKAGE" is skipped where pkg-config lacks that, and one
with a line "// needs: /PATH/HEADER" where there is no such file.

usage: check_compile_fail.py INCLUDE_DIR COMPILER [ARG...]
"""
import pathlib
import re
import subprocess
import sys
import tempfile

include = sys.argv[1]
compiler = [*sys.argv[2:], "-std=c++20"]
passed = failed = skipped = 0

# Nearly all of the time would go into ddpp.hpp again and again: it is compiled once. g++ takes what is precompiled
# where it finds that before the header, clang where it is told to.
folder = tempfile.TemporaryDirectory()
precompiled = pathlib.Path(folder.name) / "ddpp" / "ddpp.hpp.gch"
precompiled.parent.mkdir()
including = pathlib.Path(folder.name) / "including.hpp"
including.write_text("#include <ddpp/ddpp.hpp>\n")
subprocess.run([*compiler, f"-I{include}", "-x", "c++-header", str(including), "-o", str(precompiled)], check=True)
is_clang = "clang" in subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
ready_made = ["-include-pch", str(precompiled)] if is_clang else [f"-I{folder.name}"]
compiler += ["-fsyntax-only", *ready_made, f"-I{include}"]

for source in sorted((pathlib.Path(__file__).parent / "compile_fail").glob("*.cpp")):
    text = source.read_text()
    expected = re.findall(r"^// expect: (.+)$", text, re.MULTILINE)
    assert expected and "#ifdef WRONG" in text, source
    arguments = []
    missing = None
    for package in re.findall(r"^// needs: (.+)$", text, re.MULTILINE):
        if package.startswith("/"):
            if not pathlib.Path(package).is_file():
                missing = package
            arguments += ["-isystem", str(pathlib.Path(package).parent)]
            continue
        found = subprocess.run(["pkg-config", "--cflags", package], capture_output=True, text=True)
        if found.returncode != 0:
            missing = package
        arguments += [flag.replace("-I", "-isystem", 1) for flag in found.stdout.split()]
    if missing:
        skipped += 1
        print(f"skip compile_fail/{source.stem}: no {missing}")
        continue
    right = subprocess.run([*compiler, *arguments, str(source)], capture_output=True, text=True)
    wrong = subprocess.run([*compiler, *arguments, "-DWRONG", str(source)], capture_output=True, text=True)
    unsaid = [pattern for pattern in expected if not re.search(pattern, wrong.stderr)]
    if right.returncode != 0:
        failed += 1
        print(f"FAIL {source.name}: the right program does not compile:\n{right.stderr}")
    elif wrong.returncode == 0:
        failed += 1
        print(f"FAIL {source.name}: the wrong program compiles")
    elif unsaid:
        failed += 1
        print(f"FAIL {source.name}: the message lacks {unsaid}:\n{wrong.stderr}")
    else:
        passed += 1

print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed != 0)
