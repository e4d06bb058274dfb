#!/usr/bin/env bash
# Runs the tests in steps, goes on after a failed one, and ends with a summary. The exit status
# is 0 only when every step passed. Run it through make, which installs what is missing first.
#
# usage: scripts/test.sh all | quick | sanitizers | fuzz
# environment: JOBS (processors), SECONDS_EACH (of each fuzz target; 15)
set -uo pipefail
cd "$(dirname "$0")/.."

readonly JOBS=${JOBS:-$(nproc)}
readonly LOGS=build/test-logs
# Emulated kernels are compiled at run time, without sanitizers: what is left runs every part of the emulator.
readonly UNSANITIZED='-*EmulatedNotANumber*:*Emulated*KvCache*:*EmulatedMerge*:*/Paths.*:HopperPaths.EveryTile:HopperPaths.PartsOfTheKeys:Compiled/*'
readonly SANITIZED_PERCENT=40  # of the random problems, which the other build checks in full
export PYTHONPATH=$PWD/build/python HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
export OMP_WAIT_POLICY=passive  # torch's threads sleep rather than spin: tests wait more than they compute

names=() results=() seconds=() processor_seconds=() closings=()

# processor_time: sets `used` to the processor seconds of every command so far.
processor_time() {
  times >"$LOGS/times"
  used=$(awk 'NR == 2 { gsub("s", ""); split($1, u, "m"); split($2, s, "m"); printf "%d", 60 * (u[1] + s[1]) + u[2] + s[2] }' "$LOGS/times")
}

# closing_line LOG: what cpp_tests or pytest said in the end.
closing_line() {
  sed -n -E 's/^=* *([0-9]+ passed, [0-9]+ skipped, [0-9]+ failed|([0-9]+ [a-z]+(, )?)+ in [0-9.]+s.*[^=])=*$/\1/p' "$1" | tail -n 1
}

# step NAME COMMAND...: runs it, shows and keeps its output, remembers how it went.
step() {
  local name=$1 start=$SECONDS log result=passed used before
  shift
  log=$LOGS/${name// /-}.log
  mkdir -p "$LOGS"
  processor_time
  before=$used
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log"
  [[ ${PIPESTATUS[0]} -eq 0 ]] || result=FAILED
  processor_time
  names+=("$name") results+=("$result") seconds+=($((SECONDS - start))) processor_seconds+=($((used - before)))
  closings+=("$(closing_line "$log")")
  [[ $result == passed ]]
}

summary() {
  local passed=0 failed=0 i
  printf '\n== summary\n'
  for i in "${!names[@]}"; do
    printf '%-7s %-16s %4d s, %4d s of processors  %s\n' "${results[i]}" "${names[i]}" "${seconds[i]}" \
      "${processor_seconds[i]}" "${closings[i]}"
    if [[ ${results[i]} == passed ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  done
  printf '%d passed, %d failed\n' "$passed" "$failed"
  [[ $failed -eq 0 ]]
}

# cpp_tests FOLDER OPTION...: ctest in that build, and how many cases its programs ran.
cpp_tests() {
  local folder=$1 status
  shift
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$JOBS" "$@"
  status=$?
  awk '$1 == "[" && $4 ~ /^[0-9]+$/ { if ($2 == "PASSED") passed += $4; if ($2 == "SKIPPED") skipped += $4; if ($2 == "FAILED") failed += $4 }
    END { printf "%d passed, %d skipped, %d failed\n", passed, skipped, failed }' "$folder/Testing/Temporary/LastTest.log"
  return $status
}
# Folder by folder: two of them may have files of one name.
python_tests() { .venv/bin/python -m pytest -q -p no:cacheprovider --durations=5 -n "$JOBS" --dist loadfile "tests/$@"; }

# With clang the fuzz step's build serves both; else one of gcc.
sanitizers() {
  local preset=asan options=(-DPython_EXECUTABLE="$PWD/.venv/bin/python" -DTILEWISE_TEST_KERNELS="$PWD/build/kernels") clang
  if clang=$(scripts/bootstrap.sh --fuzzing-clang); then
    preset=fuzz
    options+=(-DCMAKE_C_COMPILER="${clang/++/}" -DCMAKE_CXX_COMPILER="$clang")
  fi
  if command -v ccache >/dev/null; then
    options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  cmake --preset "$preset" -G Ninja "${options[@]}" >/dev/null &&
    cmake --build "build-$preset" -j "$JOBS" &&
    TILEWISE_TEST_PERCENT=$SANITIZED_PERCENT GTEST_FILTER=$UNSANITIZED cpp_tests "build-$preset"
}

fuzz() {
  local clang
  if ! clang=$(scripts/bootstrap.sh --fuzzing-clang); then
    echo "fuzz: no clang with libFuzzer here; the corpus was replayed by the C++ tests"
    return 0
  fi
  CXX=$clang tests/fuzz/fuzz.sh "${SECONDS_EACH:-15}"
}

case ${1:-} in
  all)
    if step "build" make --no-print-directory test-build; then
      step "C++ tests" cpp_tests build
      step "Python tests" python_tests python
      step "command tests" python_tests cli
      step "document tests" python_tests documents tests/golden --dist load  # few files
      step "wheel" python_tests package
      step "lint" scripts/lint.sh
      step "sanitizers" sanitizers
      step "fuzz" fuzz
    fi
    ;;
  quick)
    if step "build" make --no-print-directory test-build; then
      step "C++ tests" cpp_tests build -LE 'qemu|consumer'
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
