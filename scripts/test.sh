#!/usr/bin/env bash
# Runs the tests in steps, goes on after a failed one, and ends with a summary. The exit status
# is 0 only when every step passed. Run it through make, which installs what is missing first.
#
# usage: scripts/test.sh all | quick | sanitizers | fuzz
# environment: JOBS (processors), SECONDS_EACH (of each fuzz target; 10)
set -uo pipefail
cd "$(dirname "$0")/.."

readonly JOBS=${JOBS:-$(nproc)}
readonly LOGS=build/test-logs
readonly SANITIZED_FOLDERS='^(core|jit|layering|reference|implementations|emulation|cpu|cli|fuzz)$'
export PYTHONPATH=$PWD/build/python HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
export OMP_WAIT_POLICY=passive  # torch's threads sleep rather than spin: tests wait more than they compute

names=() results=() seconds=() closings=()

# closing_line LOG: what ctest or pytest said in the end.
closing_line() {
  sed -n -E 's/^=* *([0-9]+% tests passed, .* failed out of [0-9]+|([0-9]+ [a-z]+(, )?)+ in [0-9.]+s.*[^=])=*$/\1/p' "$1" | tail -n 1
}

# step NAME COMMAND...: runs it, shows and keeps its output, remembers how it went.
step() {
  local name=$1 start=$SECONDS log result=passed
  shift
  log=$LOGS/${name// /-}.log
  mkdir -p "$LOGS"
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log"
  [[ ${PIPESTATUS[0]} -eq 0 ]] || result=FAILED
  names+=("$name") results+=("$result") seconds+=($((SECONDS - start))) closings+=("$(closing_line "$log")")
  [[ $result == passed ]]
}

summary() {
  local passed=0 failed=0 i
  printf '\n== summary\n'
  for i in "${!names[@]}"; do
    printf '%-7s %-22s %4d s  %s\n' "${results[i]}" "${names[i]}" "${seconds[i]}" "${closings[i]}"
    if [[ ${results[i]} == passed ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  done
  printf '%d passed, %d failed\n' "$passed" "$failed"
  [[ $failed -eq 0 ]]
}

cpp_tests() { ctest --test-dir build --output-on-failure --no-tests=error -j "$JOBS" "$@"; }
# Folder by folder: two of them may have files of one name.
python_tests() { .venv/bin/python -m pytest -q -p no:cacheprovider --durations=5 "tests/$1"; }

sanitizers() {
  local launcher=()
  if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  cmake --preset asan -G Ninja "${launcher[@]}" -DTILEWISE_BUILD_BENCH=OFF -DPython_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null &&
    cmake --build build-asan -j "$JOBS" &&
    ctest --test-dir build-asan --output-on-failure --no-tests=error -j "$JOBS" -L "$SANITIZED_FOLDERS"
}

fuzz() {
  local clang
  if ! clang=$(scripts/bootstrap.sh --fuzzing-clang); then
    echo "fuzz: no clang with libFuzzer here; the corpus was replayed by the C++ tests"
    return 0
  fi
  CXX=$clang tests/fuzz/fuzz.sh "${SECONDS_EACH:-10}" "$PWD/build-fuzz"
}

case ${1:-} in
  all)
    if step "build" make --no-print-directory test-build; then
      step "C++ tests" cpp_tests
      step "Python tests" python_tests python
      step "command tests" python_tests cli
      step "document tests" python_tests documents
      step "wheel" python_tests package
      step "lint" scripts/lint.sh
      step "sanitizers" sanitizers
      step "fuzz" fuzz
    fi
    ;;
  quick)
    if step "build" make --no-print-directory test-build; then
      step "C++ tests" cpp_tests -LE 'qemu|consumer'
      step "Python tests" python_tests python
      step "command tests" python_tests cli
    fi
    ;;
  sanitizers) step "sanitizers" sanitizers ;;
  fuzz) step "fuzz" fuzz ;;
  *)
    echo "usage: scripts/test.sh all | quick | sanitizers | fuzz (got '${1:-}')" >&2
    exit 2
    ;;
esac
summary
