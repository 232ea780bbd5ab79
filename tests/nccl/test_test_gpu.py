#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""scripts/test-gpu on machines that it is made to believe in. usage: test_test_gpu.py SCRIPT

Tools of our own stand for nvidia-smi, nvcc and compute-sanitizer; what the latter compiles are shell scripts.
"""
import gzip
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

script = pathlib.Path(sys.argv[1])

TOOLS = {
    "nvidia-smi": 'echo "Test GPU 9000, 580.1, 1024 MiB, 9.0"',
    "compute-sanitizer": 'echo "========= ERROR SUMMARY: 0 errors"',
    "nvcc": '''[ "$1" = --version ] && { echo "release 13.0"; exit; }
while [ "$1" != -o ]; do shift; done
cp "$(dirname "$0")/programs/$(basename "$2")" "$2"''',
}
CURVE = 'for epoch in 1 2 3 4 5 6 7 8; do echo "    $epoch  0.$((10 - epoch))00000000000   80.00 %  1000"; [ "$epoch$4" = 33 ] && break; done; true'
PROGRAMS = {
    "gpu_checks": '''[ "$NCCL_HOSTID" = "ddpp-test-$RANK" ] && [ "$NCCL_SOCKET_IFNAME" = lo ] || { echo "on one host"; exit 1; }
for check; do
  [ "$check@$RANK/$WORLD_SIZE" = "$HANGS" ] && { echo $$ >>"$PIDS"; sleep 1000; }
  [ "$check@$RANK/$WORLD_SIZE" = "$FAILS" ] && { echo "FAIL $check: on purpose"; exit 1; }
  [ "$check$((RANK + 1))" = "killed$WORLD_SIZE" ] && kill -KILL $$
  [ $check = host_memory ] && [ -z "$SMALL_REACH" ] && echo "the device reaches all memory"
  echo "ok $check"
done
echo "$@" >>"$DONE"''',
    "gpu_kernels": 'if [ "$NO_DEVICE" ]; then echo "0 passed, 0 failed, 1 skipped"; else echo "1 passed, 0 failed, 0 skipped"; fi',
    "nccl_overhead": 'echo "bytes, $WORLD_SIZE ranks"',
    "cuda_fashion_mnist": f'[ -z "$ANOTHER_CURVE" ] || echo "    0  0.9   80.00 %  1000"\n{CURVE}',
    "example_on_the_double": CURVE,
    "conformance": 'echo "17 passed, 0 failed, 0 skipped"',
}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    for name, text in TOOLS.items():
        write(scratch / "bin" / name, text)
    for name, text in PROGRAMS.items():
        write(scratch / "bin/programs" / name, text)
    for name in ("include/nccl.h", "lib/libnccl.so.2", "data/train-images-idx3-ubyte.gz"):
        write(scratch / name, "")
    (scratch / "data/train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"images"))
    (scratch / "include/nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 3\n")
    report, done, pids = scratch / "out/report.md", scratch / "done", scratch / "pids"

    def run(*arguments, gpu=True, **environment):
        for each in (report, done, pids):
            each.unlink(missing_ok=True)
        path = f"{scratch}/bin:/usr/bin:/bin" if gpu else str(scratch / "empty")
        result = subprocess.run(
            [sys.executable, script, "--report", report, "--data", scratch / "data", *arguments], capture_output=True, text=True, timeout=1200,
            env={"PATH": path, "NCCL_HOME": str(scratch), "PIDS": str(pids), "DONE": str(done), **environment})
        text = report.read_text() if report.exists() else ""
        said = "\n".join(map(str, ["===", arguments, environment, result.stdout, result.stderr, text]))
        print(textwrap.indent(said, "| "))  # its counts are not this test's
        return result, text

    result, text = run(gpu=False)
    assert result.returncode == 77 and not text, "without a GPU it must not pass"
    assert "nothing was tested: there is no NVIDIA GPU" in result.stderr

    result, text = run("--dry-run", gpu=False)
    assert result.returncode == 0 and not text
    for planned in ("build gpu_checks: nvcc", "run checks, 4 ranks", "run a killed rank, 2 ranks", "run conformance, 4 ranks"):
        assert planned in result.stdout, planned

    result, text = run()
    assert result.returncode == 0, "everything passes"
    assert "FAILED" not in text and "not run" not in text.replace("| not run | 0.0 | there is no doctest", "")
    for line in ("# Test GPU 9000, ", "| NCCL | 2.28.3 |", "| checks, 4 ranks | passed |", "| a killed rank, 4 ranks | passed |",
                 "| memcheck of the example | passed |", "bytes, 2 ranks", "| 2 on the device | 0.9 0.8 0.7 |", "loss 0.9 to 0.2"):
        assert line in text, line

    result, text = run(SMALL_REACH="1")
    assert result.returncode == 0 and "| conformance, 2 ranks | not run |" in text

    result, text = run(FAILS="messages@1/2")
    assert result.returncode == 1 and "| checks, 2 ranks | FAILED |" in text and "FAIL messages: on purpose" in text
    assert "| checks, 1 rank | passed |" in text and "| checks, 4 ranks | passed |" in text
    after = [line.split()[0] for line in done.read_text().splitlines()]
    assert after.count("order") == 2, f"both ranks go on after a check that failed: {after}"

    result, text = run(ANOTHER_CURVE="1")
    assert result.returncode == 1 and "| example: same curve as on the double | FAILED |" in text

    result, text = run(NO_DEVICE="1")
    assert result.returncode == 1 and "| kernels | FAILED |" in text, "what skips did not pass"

    result, text = run(FAILS="killed@0/4")
    assert result.returncode == 1 and "| a killed rank, 4 ranks | FAILED |" in text

    begin = time.monotonic()
    result, text = run("--seconds", "20", HANGS="order@0/1")
    assert time.monotonic() - begin < 150 and result.returncode == 1
    assert "no end after" in text and "not run" in text and "the time was over" in text
    for pid in pids.read_text().split():
        assert not pathlib.Path(f"/proc/{pid}").exists(), "it is still there"

    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if os.environ.get("DDPP_TEST_FULL") and os.access(compiler, os.X_OK):  # two minutes
        (scratch / "bin/nvcc").unlink()
        (scratch / "bin/nvcc").symlink_to(compiler)
        result, text = run("--seconds", "1000", NCCL_HOME="")
        assert "| build | passed |" in text, "it does not compile"
        (scratch / "bin/nvcc").unlink()

    write(scratch / "bin/nvcc", '[ "$1" = --version ] || { echo "error: on purpose"; exit 1; }')
    result, text = run()
    assert result.returncode == 1 and "error: on purpose" in text and "gpu_checks was not built" in text

    for wrong in (["--seconds", "0"], ["--colour"]):
        assert run(*wrong)[0].returncode == 2, wrong
