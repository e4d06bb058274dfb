#!/usr/bin/env bash
# ziglang 0.17.1: a standard exception that leaves a shared library is of no known type in the program that uses it.
#
# `zig c++` links LLVM's C++ runtime into each program and library, hidden. That runtime tells types apart by the address
# of their type_info, and each copy has its own of std::bad_alloc: a program that catches it, or std::exception, from a
# library gets it by catch (...) alone, while a class whose type_info the library exports is caught by its name. So a
# wheel whose extension module links a library of the same wheel loses MemoryError. The count of uncaught exceptions is
# per copy too, and goes below zero. With g++, which links libstdc++ shared, all are caught. Seen on 2026-11-30, on x86-64:
# "g++: own class, std::bad_alloc, 0 uncaught; zig: own class, anything, -2 uncaught".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check ziglang==0.17.1 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
cd "$work"
cat >shared.hpp <<'CPP'
#include <exception>
#include <new>
struct __attribute__((visibility("default"))) Own : std::exception {
  ~Own() override;
};
__attribute__((visibility("default"))) void raise(bool own);
CPP
cat >library.cpp <<'CPP'
#include "shared.hpp"
Own::~Own() = default;
void raise(bool own) {
  if (own) throw Own();
  throw std::bad_alloc();
}
CPP
cat >program.cpp <<'CPP'
#include <cstdio>
#include "shared.hpp"
const char* caught(bool own) {
  try {
    raise(own);
  } catch (const Own&) {
    return "own class";
  } catch (const std::bad_alloc&) {
    return "std::bad_alloc";
  } catch (const std::exception&) {
    return "std::exception";
  } catch (...) {
    return "anything";
  }
  return "nothing";
}
int main() {
  const char* first = caught(true);
  const char* second = caught(false);
  std::printf("%s, %s, %d uncaught", first, second, std::uncaught_exceptions());
}
CPP
run_with() {
  "$@" -std=c++17 -fPIC -shared library.cpp -o libshared.so
  "$@" -std=c++17 program.cpp -L. -lshared -Wl,-rpath,"$work" -o program
  ./program
}
export ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig
gnu=$(run_with g++)
zig=$(run_with "$work/venv/bin/python" -m ziglang c++ 2>"$work/log") || { cat "$work/log" >&2; exit 1; }
seen="g++: $gnu; zig: $zig"
echo "ziglang 0.17.1: $seen"
[[ $seen == "g++: own class, std::bad_alloc, 0 uncaught; zig: own class, anything, -2 uncaught" ]] ||
  { echo "this has changed" >&2; exit 1; }
