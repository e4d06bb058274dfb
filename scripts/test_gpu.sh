#!/usr/bin/env bash
# Builds what the GPU tests need and runs them on this machine's GPU: the Python tests (pytest) and, where CLI11 and
# nlohmann_json are found, the command's random problems and feature table. Goes on after a failed step and ends
# with a summary; the exit status is 0 only when every step passed.
#
# usage: scripts/test_gpu.sh [smoke | sanitize]     smoke: build and run a few calls, nothing else; sanitize: a few
#   problems under compute-sanitizer's memcheck, racecheck and synccheck
# environment: PYTHON (has torch, pytest and nanobind; .venv/bin/python or python3), BUILD (build folder; build-gpu),
#   JOBS (processors), VERIFY_COUNT (random problems; 200), VERIFY_SIZES (of them in a row that differ in their sizes
#   alone and share compiled kernels; 1), CMAKE_PREFIX_PATH (where CLI11 and nlohmann_json lie),
#   PYTEST_ARGS (such as "-k decode"), SUITES (a build's tests/implementations/test_implementations, made where
#   GoogleTest is: its samples for GPUs run too), SANITIZER (compute-sanitizer, perhaps another release's, and its
#   arguments), SANITIZE_SECONDS (for each problem and tool; 120)
set -uo pipefail
cd "$(dirname "$0")/.."

readonly JOBS=${JOBS:-$(nproc)} BUILD=${BUILD:-build-gpu} VERIFY_COUNT=${VERIFY_COUNT:-200}
readonly VERIFY_SIZES=${VERIFY_SIZES:-1}
if [[ -z ${PYTHON:-} ]]; then
  if [[ -x .venv/bin/python ]]; then PYTHON=$PWD/.venv/bin/python; else PYTHON=$(command -v python3); fi
fi
readonly LOGS=$BUILD/test-logs
export PYTHONPATH=$PWD/$BUILD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export TILEWISE_CACHE_DIR=${TILEWISE_CACHE_DIR:-$PWD/$BUILD/kernels}
# Programs that come from elsewhere, as SUITES does, find this build's helper.
export TILEWISE_COMPILER=${TILEWISE_COMPILER:-$PWD/$BUILD/tilewise-compiler}

names=() results=() seconds=() closings=()

# step NAME COMMAND...: runs it, shows and keeps its output, remembers how it went.
step() {
  local name=$1 start=$SECONDS log result=passed
  shift
  mkdir -p "$LOGS"
  log=$LOGS/${name// /-}.log
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log"
  [[ ${PIPESTATUS[0]} -eq 0 ]] || result=FAILED
  names+=("$name") results+=("$result") seconds+=($((SECONDS - start))) closings+=("$(grep -v '^ *$' "$log" | tail -n 1 | cut -c 1-110)")
  [[ $result == passed ]]
}

summary() {
  local failed=0 i
  printf '\n== summary\n'
  for i in "${!names[@]}"; do
    printf '%-7s %-18s %4d s  %s\n' "${results[i]}" "${names[i]}" "${seconds[i]}" "${closings[i]}"
    [[ ${results[i]} == passed ]] || failed=$((failed + 1))
  done
  printf '%d passed, %d failed\n' $((${#names[@]} - failed)) "$failed"
  [[ $failed -eq 0 ]]
}

configure() {
  local launcher=()
  if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release "${launcher[@]}" -DPython_EXECUTABLE="$PYTHON" \
    -DTILEWISE_BUILD_PYTHON=ON -DTILEWISE_BUILD_TESTS=OFF -DTILEWISE_BUILD_BENCH=OFF -DTILEWISE_INSTALL=OFF -DTILEWISE_WERROR=OFF \
    -DTILEWISE_BUILD_TOOLS="$1" >"$LOGS/configure.log" 2>&1
}

build() {
  local command="the command included"
  if ! configure ON; then
    grep -q 'needs CLI11' "$LOGS/configure.log" && configure OFF || { tail -n 20 "$LOGS/configure.log"; return 1; }
    command="the command left out: CLI11 and nlohmann_json are not both found"
  fi
  cmake --build "$BUILD" -j "$JOBS" >"$LOGS/cmake-build.log" 2>&1 || { grep -A 8 -E 'error|FAILED' "$LOGS/cmake-build.log" | head -n 60; return 1; }
  echo "built in $BUILD, $command"
}

machine() {
  { nvidia-smi -L || rocm-smi --showproductname; } 2>/dev/null
  "$PYTHON" -c 'import torch; print("torch", torch.__version__, "sees", torch.cuda.device_count(), "GPUs")'
  if [[ -x $BUILD/tilewise ]]; then "$BUILD/tilewise" doctor | grep -A 12 'GPU' || true; fi
}

python_tests() {
  local workers=()
  if "$PYTHON" -c 'import xdist' 2>/dev/null; then workers=(-n "$((JOBS < 16 ? JOBS : 16))" --dist worksteal); fi
  # shellcheck disable=SC2086  # PYTEST_ARGS is a list
  "$PYTHON" -m pytest -q -p no:cacheprovider --durations=5 -r f --tb=short "${workers[@]}" -m "not huge" tests/gpu ${PYTEST_ARGS:-}
}

# random_problems LOG OPTIONS...: in as many processes as there are processors, since nearly every one compiles kernels
# of its own.
random_problems() {
  local name=$1 shard shards=$JOBS count=$(((VERIFY_COUNT + JOBS - 1) / JOBS)) status=0 workers=()
  shift
  for ((shard = 0; shard < shards; ++shard)); do
    "$BUILD/tilewise" verify --without f32,f64 --max-flops 2e6 --seed $((1 + shard * 100000)) --count "$count" \
      --sizes "$VERIFY_SIZES" "$@" >"$LOGS/$name-$shard.log" 2>&1 &
    workers+=($!)
  done
  for shard in "${!workers[@]}"; do
    wait "${workers[shard]}" || { status=1; grep -q '^implementation ' "$LOGS/$name-$shard.log" || tail -n 3 "$LOGS/$name-$shard.log"; }
  done
  cat "$LOGS/$name"-[0-9]*.log | grep -A 1 '^FAILED' | grep -v '^--' | cut -c 1-400 | head -n 60
  cat "$LOGS/$name"-[0-9]*.log | awk '/^(cuda|hip)\./ && $2 + $3 > 0 { p[$1] += $2; f[$1] += $3; r[$1] += $4; if ($5 > e[$1]) e[$1] = $5 }
    END { for (n in p) printf "%s: %d passed, %d failed, %d refused; largest error %s of its bound\n", n, p[n], f[n], r[n], e[n] }'
  return $status
}

is_hopper() { "$PYTHON" -c 'import sys, torch; sys.exit(torch.cuda.get_device_capability() != (9, 0))'; }

# Problems that Hopper's own kernels take, more often than among those of any implementation.
hopper_problems() {
  local options=(--implementation cuda.hopper --head-dim-multiple 8)
  random_problems hopper-forward "${options[@]}" --operation attention --without backward &&
    random_problems hopper-backward "${options[@]}" --operation attention --without fp8_e4m3,forward &&
    random_problems hopper-kv_cache "${options[@]}" --operation kv_cache --without fp8,slots
}

# Metamorphic, special-value, corner-case and reproducibility suites, on rows of GPUs. Those of GPUs that are not here
# skip; where all of them do, nothing was tested.
suites() {
  "$SUITES" --gtest_brief=1 --gtest_filter='Compiled/*/cuda_*:Compiled/*/hip_*' 2>&1 | tee "$LOGS/suites.out" || return 1
  grep -q -E '^\[  PASSED  \] [1-9]' "$LOGS/suites.out" || { echo "suites: no test ran, or all of them skipped"; return 1; }
}

# Small problems that take every kernel, Hopper's own among them. Other tools' exit status is theirs; 9 is the sanitizer's.
readonly SANITIZED=(
  "attention_forward dtype=bf16 batch_size=2 seqlen_q=70 seqlen_k=150 num_heads_q=4 num_heads_k=2 head_dim=64 mask=causal"
  "attention_forward dtype=f16 seqlen_q=1 seqlen_k=3000 num_heads_q=4 num_heads_k=2 head_dim=128 sink=1"
  "attention_forward dtype=bf16 layout=thd batch_size=3 max_seqlen_q=40 max_seqlen_k=70 total_q=90 total_k=150 num_heads_q=2 num_heads_k=1 head_dim=33 seqused_k=1 dropout_p=0.25"
  "attention_backward dtype=bf16 batch_size=2 seqlen_q=70 seqlen_k=150 num_heads_q=4 num_heads_k=2 head_dim=64 mask=causal bias=f32[1,h,q,k] dbias=1 sink=1 dsink=1"
  "attention_backward dtype=f16 layout=thd batch_size=3 max_seqlen_q=40 max_seqlen_k=70 total_q=90 total_k=150 num_heads_q=2 num_heads_k=1 head_dim=40 softcap=3 dlse=1"
  "attention_backward dtype=bf16 seqlen_q=70 seqlen_k=90 num_heads_q=2 num_heads_k=2 head_dim=256 deterministic=1"
  "attention_backward dtype=bf16 seqlen_q=700 seqlen_k=90 num_heads_q=4 num_heads_k=1 head_dim=128 mask=causal dropout_p=0.1"
  "attention_backward dtype=bf16 batch_size=2 seqlen_q=150 seqlen_k=200 num_heads_q=4 num_heads_k=2 head_dim=128 mask=causal"
  "attention_backward dtype=f16 layout=thd batch_size=3 max_seqlen_q=140 max_seqlen_k=170 total_q=290 total_k=350 num_heads_q=2 num_heads_k=1 head_dim=64 window_left=60"
  "attention_backward dtype=bf16 seqlen_q=130 seqlen_k=130 num_heads_q=1 num_heads_k=1 head_dim=256"
  "attention_backward dtype=bf16 seqlen_q=600 seqlen_k=160 num_heads_q=4 num_heads_k=1 head_dim=128 bias=query[1,h,q,k] dbias=1"
  "attention_backward dtype=bf16 seqlen_q=300 seqlen_k=130 num_heads_q=2 num_heads_k=1 head_dim=256 bias=query[1,h,q,k]"
  "attention_backward dtype=f16 seqlen_q=150 num_heads_q=2 head_dim=128 mask=causal softcap=20"
  "attention_backward dtype=bf16 seqlen_q=150 num_heads_q=2 head_dim=192 head_dim_v=128 mask=causal dropout_p=0.2"
  "attention_backward dtype=bf16 batch_size=2 seqlen_q=300 num_heads_q=3 head_dim=128 mask=causal deterministic=1"
  "attention_backward dtype=f16 seqlen_q=260 num_heads_q=3 head_dim=96 mask=causal window_left=100 deterministic=1"
  "attention_backward dtype=bf16 batch_size=4 seqlen_q=450 num_heads_q=12 head_dim=128 mask=causal window_left=100"
  "attention_backward dtype=bf16 seqlen_q=500 num_heads_q=3 head_dim=64 deterministic=1 softcap=20"
  "attention_forward dtype=bf16 batch_size=2 seqlen_q=300 num_heads_q=2 head_dim=256 window_left=90 softcap=20"
  "attention_forward dtype=bf16 batch_size=2 seqlen_q=130 seqlen_k=500 num_heads_q=2 head_dim=128 bias=query[b,h,q,k]"
  "attention_forward dtype=fp8_e4m3 seqlen_q=200 num_heads_q=2 head_dim=128 mask=causal"
  "kv_cache_attention dtype=bf16 batch_size=2 seqlen_q=2 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512 mla=1 capacity=300 cache_seqlens=1 mask=causal"
  "kv_cache_attention dtype=bf16 batch_size=2 seqlen_q=1 num_heads_q=128 num_heads_k=1 head_dim=576 head_dim_v=512 mla=1 page_size=16 num_pages=64 max_pages_per_seq=20 cache_seqlens=1"
  "kv_cache_attention dtype=bf16 batch_size=2 seqlen_q=70 num_heads_q=4 num_heads_k=2 head_dim=128 capacity=300 cache_seqlens=1 mask=causal append=1"
)
SANITIZE_SECONDS=${SANITIZE_SECONDS:-120}
# sanitized TOOL PROBLEM: one line, and what the tool found beneath it.
sanitized() {
  local log
  log=$(mktemp "$LOGS/sanitizer.XXXXXX")
  # shellcheck disable=SC2086  # SANITIZER is a list
  timeout "$SANITIZE_SECONDS" ${SANITIZER:-compute-sanitizer} --tool "$1" --error-exitcode 9 --print-limit 5 "$BUILD/tilewise" verify --gpu --count 2 --problem "$2" >"$log" 2>&1
  case $? in
    0) echo "clean, $1: $2" ;;
    124) echo "NOT FINISHED in $SANITIZE_SECONDS s, $1: $2"; return 1 ;;
    *) echo "NOT CLEAN, $1: $2"; grep '^=========' "$log" | head -n 25; grep -A 1 '^FAILED' "$log" | cut -c 1-300; return 1 ;;
  esac
}

# sanitize TOOL...: every problem by every tool, as many at once as there are processors.
sanitize() {
  local problem tool worker status=0 workers=()
  for problem in "${SANITIZED[@]}"; do
    "$BUILD/tilewise" verify --gpu --count 2 --problem "$problem" >/dev/null 2>&1 &  # compiles beforehand
    workers+=($!)
  done
  wait "${workers[@]}"
  workers=()
  for tool in "$@"; do
    for problem in "${SANITIZED[@]}"; do
      while [[ $(jobs -rp | wc -l) -ge $JOBS ]]; do wait -n; done
      sanitized "$tool" "$problem" >"$LOGS/sanitized-$tool-${#workers[@]}.log" &
      workers+=($!)
    done
  done
  for worker in "${workers[@]}"; do wait "$worker" || status=1; done
  cat "$LOGS"/sanitized-*.log
  return $status
}

# pytest's short summary holds one line a failure: repeated here, grouped by what they say.
failures_by_message() {
  grep -hE '^(FAILED|ERROR) ' "$LOGS"/pytest*.log 2>/dev/null | sed -E 's/^[^ ]+ [^ ]+( - )?//' | cut -c 1-160 |
    sed -E 's/[0-9]+(\.[0-9e-]+)?/N/g' | sort | uniq -c | sort -rn | head -n 25
}

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "test_gpu: torch sees no GPU here (or is not installed for $PYTHON): nothing to test" >&2
  exit 1
fi
mkdir -p "$LOGS"
step build build || { summary; exit 1; }
step machine machine
if [[ ${1:-} == sanitize ]]; then
  step sanitizers sanitize memcheck racecheck synccheck
  summary
  exit
fi
step smoke "$PYTHON" tests/gpu/smoke.py
if [[ ${1:-} != smoke ]]; then
  step pytest python_tests || { echo "-- failures by message"; failures_by_message; }
  step pytest-huge "$PYTHON" -m pytest -q -p no:cacheprovider -r f --tb=short -m huge tests/gpu
  if [[ -x ${SUITES:-} ]]; then step suites suites; fi
  if [[ -x $BUILD/tilewise ]]; then
    step verify random_problems verify --gpu
    if is_hopper; then step verify-hopper hopper_problems; fi
    step report "$BUILD/tilewise" verify --report
  fi
fi
summary
