#!/bin/sh
# Builds the libFuzzer targets with clang, AddressSanitizer and UBSan (preset fuzz), and runs all at
# once for SECONDS_EACH seconds from their corpora. Exit status: 0 nothing found, 1 a finding (the input is
# kept in BUILD_DIR), 2 usage or no clang.
#
# usage: tests/fuzz/fuzz.sh [SECONDS_EACH [BUILD_DIR]]   (default: 15 build-fuzz)
# CXX chooses the compiler; by default clang++-22, or the clang++ in the path.
set -eu

seconds=${1:-15}
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${2:-$root/build-fuzz}
case $seconds in
  '' | *[!0-9]*) echo "SECONDS_EACH: must be an integer (got '$seconds')" >&2; exit 2 ;;
esac

cxx=${CXX:-}
for candidate in clang++-22 clang++; do
  if [ -z "$cxx" ] && command -v "$candidate" >/dev/null; then cxx=$candidate; fi
done
if [ -z "$cxx" ] || ! "$cxx" --version 2>/dev/null | grep -q clang; then
  echo "fuzz.sh: no clang with libFuzzer here (Debian: clang-22 libclang-rt-22-dev); set CXX to name one" >&2
  exit 2
fi
cc=$(printf '%s' "$cxx" | sed 's/clang++/clang/')

launcher=
if command -v ccache >/dev/null; then launcher="-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"; fi
# shellcheck disable=SC2086  # launcher is two words or none
(cd "$root" && cmake --preset fuzz -G Ninja -B "$build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" $launcher) \
  >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 2; }
rm -f "$build.log"
cmake --build "$build" -j"${JOBS:-2}" --target fuzz_problem fuzz_npy fuzz_call

# run SUBJECT: fuzzes it; the outcome stands in its log.
run() {
  grown=$build/corpus-$1
  mkdir -p "$grown"
  dictionary=
  if [ -f "$root/tests/fuzz/$1.dict" ]; then dictionary=-dict=$root/tests/fuzz/$1.dict; fi
  # shellcheck disable=SC2086  # the dictionary is one word or none
  "$build/tests/fuzz/fuzz_$1" -max_total_time="$seconds" -max_len=2048 -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$build/finding-$1-" $dictionary \
    "$grown" "$root/tests/fuzz/corpus/$1" >"$build/fuzz_$1.log" 2>&1
}

runs=
for subject in problem npy call; do
  run "$subject" &
  runs="$runs $subject:$!"
done
status=0
for subject_and_process in $runs; do
  subject=${subject_and_process%:*} log=$build/fuzz_${subject_and_process%:*}.log
  if wait "${subject_and_process#*:}"; then
    echo "fuzz_$subject: nothing found in $seconds s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
  else
    tail -n 60 "$log" >&2
    echo "fuzz_$subject: a finding, kept as $build/finding-$subject-*" >&2
    status=1
  fi
done
exit $status
