#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""scripts/check-snippets sees what has gone stale. usage: test_check_snippets.py"""
import pathlib
import shutil
import subprocess
import tempfile

script = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "check-snippets"
SOURCE = "int main() {\n  // snippet: body\n  if (true) {\n    return 0;\n  }\n  // snippet end\n}\n"
PAGE = "# Page\n<!-- snippet: examples/a.cpp body -->\n```cpp\nif (true) {\n  return 0;\n}\n```\nThe end.\n"

with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    for name in "scripts", "examples", "docs/deep":
        (root / name).mkdir(parents=True)
    shutil.copy(script, root / "scripts")

    def check(source, readme, page, *arguments):
        (root / "examples" / "a.cpp").write_text(source)
        (root / "README.md").write_text(readme)
        (root / "docs" / "deep" / "page.md").write_text(page)
        return subprocess.run([root / "scripts" / "check-snippets", *arguments], capture_output=True, text=True)

    for result in check(SOURCE, "nothing", PAGE), check(SOURCE, PAGE, PAGE):
        assert result.returncode == 0 and "0 failed" in result.stdout, result
    changed = SOURCE.replace("return 0", "return 1")
    for why, result in {
            "has changed": check(changed, "nothing", PAGE),
            "docs/deep/page.md": check(SOURCE, PAGE, PAGE.replace("0", "2")),
            "no page shows": check(SOURCE, "nothing", "nothing"),
            "has no snippet": check(SOURCE.replace("body", "other"), "nothing", PAGE),
            "without a block": check(SOURCE, PAGE, PAGE.replace("```cpp", "```sh")),
            "begin and end": check(SOURCE.replace("// snippet end", ""), "nothing", "nothing"),
    }.items():
        assert result.returncode == 1 and why in result.stdout, (why, result)

    written = check(changed, "nothing", PAGE, "--write")
    assert written.returncode == 0, written
    assert (root / "docs/deep/page.md").read_text() == PAGE.replace("return 0", "return 1")
print("1 passed, 0 failed, 0 skipped")
