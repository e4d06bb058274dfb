#!/bin/sh
# What using a wheel takes, into a fresh Debian: Python. No compiler.
set -eu
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends ca-certificates python3 python3-venv >/dev/null
apt-get clean
rm -rf /var/lib/apt/lists/*
