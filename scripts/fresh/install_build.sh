#!/bin/sh
# What building wheels takes, into a fresh Debian: the system's Python with its headers, CMake and header-only libraries.
# The compiler, Zig's, comes from the package index with the other tools (scripts/requirements-wheels.txt).
set -eu
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
  cmake ninja-build git ca-certificates libcli11-dev nlohmann-json3-dev python3 python3-dev python3-venv >/dev/null
apt-get clean
rm -rf /var/lib/apt/lists/*
