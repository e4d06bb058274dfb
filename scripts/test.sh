#!/usr/bin/env bash
# Runs the tests in steps, goes on after a failed one, and ends with a summary. The exit status
# is 0 only when every step passed. Run it through make, which installs what is missing first.
#
# usage: scripts/test.sh all | quick | sanitizers | fuzz | nightly
# environment: JOBS (processors), SECONDS_EACH (of each fuzz target; 15); of nightly FACTOR (10), how many times as many
# random problems and fuzzed seconds as a test run has, and SEED of the first problem (the date)
set -uo pipefail
cd "$(dirname "$0")/.."

readonly JOBS=${JOBS:-$(nproc)}
readonly LOGS=build/test-logs
readonly SANITIZED_PERCENT=25  # of the random problems, which the other build checks in full
readonly FACTOR=${FACTOR:-10} SEED=${SEED:-$(date -u +%Y%m%d)000000} REPORT=build/nightly.md
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
  for i in "${!names[@]}"; do
    [[ ${results[i]} == passed ]] || printf '\n== the end of %s\n%s\n' "${names[i]}" "$(tail -n 20 "$LOGS/${names[i]// /-}.log")"
  done
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
# python_tests PATH... [OPTION...]: folder by folder, because two of them may have files of one name.
python_tests() { .venv/bin/python -m pytest -q -p no:cacheprovider --durations=5 -n "$JOBS" --dist loadfile "$@"; }

# What goes with models, beside the newest transformers that is pinned; all else is tested beside that of the build.
newest_transformers() { PYTHONPATH=$PYTHONPATH:$PWD/.venv/newest python_tests tests/python/test_transformers*.py; }

# sanitized_build [OPTION...]: sets `folder` to it. With clang the fuzz step's build serves both; else one of gcc.
sanitized_build() {
  local preset=asan options=(-DPython_EXECUTABLE="$PWD/.venv/bin/python" -DTILEWISE_TEST_KERNELS="$PWD/build/kernels") clang
  if clang=$(scripts/bootstrap.sh --fuzzing-clang); then
    preset=fuzz
    options+=(-DCMAKE_C_COMPILER="${clang/++/}" -DCMAKE_CXX_COMPILER="$clang")
  fi
  if command -v ccache >/dev/null; then
    options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  folder=build-$preset
  cmake --preset "$preset" -G Ninja "${options[@]}" >/dev/null && cmake --build "$folder" -j "$JOBS" "$@"
}

sanitizers() {
  local folder
  sanitized_build && TILEWISE_TEST_PERCENT=$SANITIZED_PERCENT cpp_tests "$folder"
}

# The command and what its tests give it, by night: fuzzing reads the same input in a test run.
sanitized_command() {
  local folder
  sanitized_build --target tilewise_cli && TILEWISE_CLI=$PWD/$folder/tilewise python_tests tests/cli
}

fuzz() {
  local clang
  if ! clang=$(scripts/bootstrap.sh --fuzzing-clang); then
    echo "fuzz: no clang with libFuzzer here; the corpus was replayed by the C++ tests"
    return 0
  fi
  CXX=$clang tests/fuzz/fuzz.sh "${SECONDS_EACH:-15}"
}

# times_factor COUNT: that many times FACTOR, at least ten: of fewer problems none may be one that is computed.
times_factor() { awk -v count="$1" -v factor="$FACTOR" 'BEGIN { n = int(count * factor); print n < 10 ? 10 : n }'; }

# verify OPERATION COUNT [OPTION...]: random problems, COUNT where FACTOR is 1; a failure prints what repeats it.
verify() { build/tilewise verify --operation "$1" --count "$(times_factor "$2")" --seed "$SEED" "${@:3}"; }

# Models inside vLLM itself, whose environment is kept from one night to the next.
vllm_models() {
  scripts/bootstrap.sh vllm && .venv-vllm/bin/python tests/vllm/compare.py && .venv-vllm/bin/python tests/vllm/server.py
}

# The backend inside SGLang beside SGLang's own, whose environment is kept, too.
sglang_backend() {
  scripts/bootstrap.sh sglang && .venv-sglang/bin/python -m pytest -q -p no:cacheprovider tests/sglang
}

# The tests that are built by night alone, and those that a test run leaves to it.
nightly_tests() {
  cmake --build build -j "$JOBS" --target test_emulated_hopper_nightly && build/tests/emulation/test_emulated_hopper_nightly &&
    build/tests/emulation/test_emulation --gtest_filter='*ByNight*' &&
    build/tests/implementations/test_implementations --gtest_filter='*ByNight*' && build/tests/hopper/test_hopper_sweep
}

golden() { .venv/bin/python tests/golden/golden.py; }

# The speed beside torch's, held against what was published of this kind of processor. Of a short night a rough one.
ratios() {
  local results=build/nightly_attention_cpu.json length=(--threads 1 --min-time 0.2)
  if awk -v factor="$FACTOR" 'BEGIN { exit !(factor < 1) }'; then length=(--quick); fi
  .venv/bin/python bench/attention_cpu.py "${length[@]}" --no-decode --no-overhead --json "$results" &&
    .venv/bin/python bench/published.py "$results" --report build/nightly_ratios.md
}

# nightly_report: a page for whoever looks in the morning.
nightly_report() {
  {
    printf '# Nightly run of %s\n\n' "$(date -u '+%Y-%m-%d %H:%M') UTC"
    printf 'Commit %s, seed %s, factor %s.\n\n' "$(git rev-parse --short HEAD)" "$SEED" "$FACTOR"
    printf '```\n%s\n```\n' "$(summary)"
    printf '\n## Golden outputs\n\n```\n%s\n```\n' "$(grep -v '^golden: ' "$LOGS/golden.log" 2>/dev/null)"
    printf '\n## Speed beside torch\n\n%s\n' "$(cat build/nightly_ratios.md 2>/dev/null)"
  } >"$REPORT"
  echo "written: $REPORT"
}

case ${1:-} in
  all)
    if step "build" make --no-print-directory test-build; then
      step "C++ tests" cpp_tests build
      step "Python tests" python_tests tests/python
      step "newest transformers" newest_transformers
      step "command tests" python_tests tests/cli
      step "document tests" python_tests tests/documents tests/golden --dist load  # few files
      step "wheel" python_tests tests/package
      step "lint" scripts/lint.sh
      step "sanitizers" sanitizers
      step "fuzz" fuzz
    fi
    ;;
  quick)
    if step "build" make --no-print-directory test-build; then
      step "C++ tests" cpp_tests build -LE 'qemu|consumer'
      step "Python tests" python_tests tests/python
      step "command tests" python_tests tests/cli
    fi
    ;;
  sanitizers) step "sanitizers" sanitizers ;;
  fuzz) step "fuzz" fuzz ;;
  nightly)
    if ! awk -v factor="$FACTOR" 'BEGIN { exit !(factor + 0 > 0) }'; then
      echo "FACTOR: must be a number above 0 (got '$FACTOR')" >&2
      exit 2
    fi
    rm -f build/nightly_*
    if step "build" make --no-print-directory test-build; then
      export TILEWISE_CACHE_DIR=$PWD/build/kernels
      step "nightly tests" nightly_tests
      step "verify attention" verify attention 450
      step "verify kv_cache" verify kv_cache 100
      step "verify merge" verify merge 50
      step "verify emulations" verify attention 20 --without f32,f64,fp8_e4m3 \
        --implementation emulation.sm80,emulation.sm90,emulation.cdna,emulation.rdna,emulation.rdna4,emulation.gfx1250
      TILEWISE_TEST_PACKED=$(times_factor 20) TILEWISE_TEST_PACKED_SEED=$SEED \
        step "packed batches" python_tests tests/python/test_transformers_packed.py -k random_batches --dist load
      SECONDS_EACH=$(times_factor "${SECONDS_EACH:-15}") step "fuzz" fuzz
      step "sanitized command" sanitized_command
      step "vLLM" vllm_models
      step "SGLang" sglang_backend
      step "golden" golden
      step "ratios" ratios
    fi
    nightly_report
    ;;
  *)
    echo "usage: scripts/test.sh all | quick | sanitizers | fuzz | nightly (got '${1:-}')" >&2
    exit 2
    ;;
esac
summary
