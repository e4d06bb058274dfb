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

status=0
check() {
  local name=$1
  shift
  if "$@"; then echo "lint: $name passed"; else
    echo "lint: $name failed"
    status=1
  fi
}
check clang-format "$BIN/clang-format" --dry-run -Werror "${sources[@]}"
check "ruff check" "$BIN/ruff" check --quiet .
check "ruff format" "$BIN/ruff" format --quiet --check .
check mypy "$BIN/mypy"
exit $status
