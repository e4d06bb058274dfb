#!/bin/sh
# In a copy of the repository: its wheels into dist/, nothing else left beside them.
set -eu
scripts/wheels.sh build
rm -rf build-wheels
