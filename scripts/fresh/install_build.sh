#!/bin/sh
# Into a fresh Debian what .github/workflows install there too: what copies the repository, and make, which installs the
# rest. The compiler, Zig's, comes from the package index with the other tools (scripts/requirements-wheels.txt).
set -eu
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends ca-certificates git make >/dev/null
