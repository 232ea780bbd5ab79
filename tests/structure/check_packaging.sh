#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# The first example is README.md's, and builds and runs in each way that a user may take: the bare headers, pkg-config after an
# installation, and as a Meson subproject (which then brings no targets and no flags of ours).
# usage: check_packaging.sh SOURCE_DIR COMPILER
set -uo pipefail
source_dir=$1 compiler=$2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
example=$source_dir/examples/first.cpp
passed=0 failed=0

try() {  # name, command...
  local name=$1; shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL $name:"
    cat "$work/log"
  fi
}

works() { [ "$(timeout 60 "$1")" = "4 ranks, every element is 10" ]; }

bare_headers() {
  "$compiler" -std=c++20 -O0 -I"$source_dir/include" "$example" -o "$work/bare" -pthread && works "$work/bare"
}

installed() {
  meson setup "$work/build" "$source_dir" --prefix "$work/prefix" -Dtests=disabled -Dexamples=disabled \
    -Dtools=disabled -Dbench=disabled && meson install -C "$work/build" || return
  local config
  config=$(find "$work/prefix" -name ddpp.pc -printf '%h') || return
  # shellcheck disable=SC2046
  "$compiler" -std=c++20 -O0 "$example" -o "$work/installed" \
    $(PKG_CONFIG_PATH=$config pkg-config --cflags --libs ddpp) && works "$work/installed"
}

subproject() {
  local project=$work/project
  mkdir -p "$project/subprojects" && ln -s "$source_dir" "$project/subprojects/ddpp" && cp "$example" "$project" || return
  cat >"$project/meson.build" <<'END'
project('user', 'cpp', default_options: ['cpp_std=c++20'])
executable('first', 'first.cpp', dependencies: dependency('ddpp', fallback: 'ddpp'))
END
  meson setup "$project/build" "$project" && meson compile -C "$project/build" || return
  ! grep -q -e '"name": "ddpp-perf"' -e Wconversion "$project/build/compile_commands.json" && works "$project/build/first"
}

readme_shows_it() { [[ $(<"$source_dir/README.md") == *"$(<"$example")"* ]]; }

try "as README.md shows it" readme_shows_it
try "with the bare headers" bare_headers
try "installed, with pkg-config" installed
try "as a Meson subproject" subproject
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
