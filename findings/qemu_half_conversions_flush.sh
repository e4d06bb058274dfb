#!/usr/bin/env bash
# Conversions between fp32 and half precision (F16C) under flush-to-zero, on a processor and under qemu-user 7.2.22.
#
# The manuals of both vendors say that VCVTPS2PH and VCVTPH2PS keep denormal halves whatever MXCSR's FZ and DAZ bits are.
# A processor does (0315, 4.70281e-05). qemu's TCG flushes both ways (0000, 0): a program that flushes fp32 denormals for
# speed and stores f16 loses the numbers from 6e-8 to 6.1e-5 there, and there alone. Seen on 2026-11-28.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q "qemu-user=1:7.2+dfsg-7+deb12u18+b3" >/dev/null 2>&1
dpkg -x qemu-user_*.deb qemu
cat >convert.c <<'C'
#include <immintrin.h>
#include <stdio.h>

int main(void) {
  volatile float numbers[8] = {4.7e-5f, 1, 1, 1, 1, 1, 1, 1};
  const __m256 wide = _mm256_set_ps(1, 1, 1, 1, 1, 1, 1, numbers[0]);
  _mm_setcsr(_mm_getcsr() | 0x8040); /* FZ and DAZ */
  const __m128i halves = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
  const __m256 back = _mm256_cvtph_ps(_mm_set1_epi16(0x0315));
  _mm_setcsr(_mm_getcsr() & ~0x8040);
  printf("%04x %g\n", _mm_extract_epi16(halves, 0), _mm256_cvtss_f32(back));
  return 0;
}
C
gcc -O1 -mavx2 -mf16c convert.c -o convert
processor=$(./convert)
emulated=$(qemu/usr/bin/qemu-x86_64 -cpu Haswell ./convert 2>/dev/null)
echo "processor: $processor; $(qemu/usr/bin/qemu-x86_64 --version | head -n 1): $emulated"
[[ $processor == "0315 4.70281e-05" && $emulated == "0000 0" ]] || { echo "this has changed" >&2; exit 1; }
