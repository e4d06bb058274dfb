#!/bin/sh
# In a copy of the repository: its wheels into dist/, nothing else left beside them.
set -eu
make wheels
rm -rf build-wheels
