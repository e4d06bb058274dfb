#!/usr/bin/env bash
# What docker/Dockerfile.wheels and docker/Dockerfile.clean do, in fresh Debian roots and without a daemon: builds the
# wheels in one, installs from them alone in another, and says what each step took and how large each root is.
#
# usage: scripts/fresh_root.sh FOLDER, as root, with mmdebstrap (Debian: apt-get install mmdebstrap); FOLDER must be absent
#
# environment: RELEASE (bookworm), MIRROR (http://deb.debian.org/debian); pip's settings and the machine's certificates
# are lent to the roots, as a daemon's network would be, and so is CCACHE_DIR, where it is set: a folder of compiled objects
# for the next run. WHEELS: a folder with wheels, in place of building them.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RELEASE=${RELEASE:-bookworm}
readonly MIRROR=${MIRROR:-http://deb.debian.org/debian}

say() { printf 'fresh_root: %s\n' "$*"; }
fail() {
  printf 'fresh_root: %s\n' "$*" >&2
  exit 1
}

# step WORDS... : runs them and says how long they took.
step() {
  local start=$SECONDS
  say "$*"
  "$@"
  say "took $((SECONDS - start)) s"
}

# make_root FOLDER: a minimal Debian that reaches what this machine reaches.
make_root() {
  mmdebstrap --quiet --variant=minbase "$RELEASE" "$1" "$MIRROR"
  cp -L /etc/resolv.conf "$1/etc/resolv.conf"
  mkdir -p "$1/run/lent"
  cp -L /etc/ssl/certs/ca-certificates.crt "$1/run/lent/certificates.pem"
  cp -r scripts/fresh "$1/fresh"
}

# inside ROOT FOLDER WORDS...: a command in that folder of the root, with a /proc of its own processes, and terminals,
# which apt-get asks for.
inside() {
  local root=$1 folder=$2 mounts='mount -t proc proc "$0/proc"; mount -t devpts devpts "$0/dev/pts"'
  shift 2
  if [[ -n ${CCACHE_DIR:-} ]]; then
    mkdir -p "$CCACHE_DIR" "$root/root/.cache/ccache"
    mounts+='; mount --bind "$CCACHE_DIR" "$0/root/.cache/ccache"'
  fi
  unshare --mount --pid --fork -- sh -euc "$mounts; exec chroot \"\$@\"" "$root" "$root" \
    env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PIP_CERT=/run/lent/certificates.pem \
    ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${SOURCE_DATE_EPOCH:+SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH"} \
    sh -euc 'cd "$0" && exec "$@"' "$folder" "$@"
}

size_of() { du -sm --one-file-system "$1" | cut -f1; }

build_wheels() {
  local root=$FOLDER/build
  step make_root "$root"
  step inside "$root" / sh /fresh/install_build.sh
  mkdir "$root/tilewise"
  git ls-files -z | xargs -0 cp --parents -t "$root/tilewise"
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  step inside "$root" /tilewise sh /fresh/build_wheels.sh
  say "the root that built them has $(size_of "$root") MB"
}

install_alone() {
  local root=$FOLDER/clean
  step make_root "$root"
  step inside "$root" / sh /fresh/install_clean.sh
  say "the root has $(size_of "$root") MB before Tilewise"
  inside "$root" / sh -c 'getconf GNU_LIBC_VERSION; python3 --version'
  cp -r "$1" "$root/dist"
  cp -r tests/wheels "$root/tests"
  step inside "$root" / sh /fresh/try_wheel.sh
  say "and $(size_of "$root") MB with it and NumPy"
  inside "$root" / /opt/tilewise/bin/tilewise doctor
}

[[ $# -eq 1 ]] || fail "usage: scripts/fresh_root.sh FOLDER (got $# arguments)"
FOLDER=$(realpath -m "$1")
[[ ! -e $FOLDER ]] || fail "FOLDER: must be absent (got $FOLDER)"
[[ $(id -u) -eq 0 ]] || fail "must run as root, which makes the roots (got user $(id -u))"
command -v mmdebstrap >/dev/null || fail "mmdebstrap: not found (Debian: apt-get install mmdebstrap)"
mkdir -p "$FOLDER"
wheels=${WHEELS:-}
if [[ -z $wheels ]]; then
  build_wheels
  wheels=$FOLDER/build/tilewise/dist
fi
ls -l "$wheels"
install_alone "$wheels"
