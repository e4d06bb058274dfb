#!/usr/bin/env bash
# Checks the style of every tracked file: clang-format, ruff and mypy. With --fix, formats instead.
#
# usage: scripts/lint.sh [--fix]
set -uo pipefail
cd "$(dirname "$0")/.."

readonly BIN=.venv/bin
mapfile -t sources < <(git ls-files '*.cpp' '*.hpp' '*.h' '*.c' ':!third_party')
[[ ${#sources[@]} -gt 0 ]] || { echo "lint: no tracked sources here; run it in a git checkout" >&2; exit 2; }

if [[ ${1:-} == --fix ]]; then
  "$BIN/clang-format" -i "${sources[@]}"
  "$BIN/ruff" check --quiet --fix .
  "$BIN/ruff" format --quiet .
  exit
fi

# check NAME COMMAND...: starts it; finish waits for all of them and says how each went.
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
names=() processes=()
check() {
  names+=("$1")
  "${@:2}" >"$logs/${#names[@]}" 2>&1 &
  processes+=($!)
}
finish() {
  local i status=0 result
  for i in "${!names[@]}"; do
    result=passed
    wait "${processes[i]}" || result=failed status=1
    cat "$logs/$((i + 1))"
    echo "lint: ${names[i]} $result"
  done
  return $status
}
check clang-format "$BIN/clang-format" --dry-run -Werror "${sources[@]}"
check "ruff check" "$BIN/ruff" check --quiet .
check "ruff format" "$BIN/ruff" format --quiet --check .
check mypy "$BIN/mypy"
finish
