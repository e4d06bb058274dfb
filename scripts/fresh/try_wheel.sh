#!/bin/sh
# Installs the wheel of /dist that this Python takes into /opt/tilewise, with NumPy, and runs /tests on it.
set -eu
for program in cc c++ gcc g++ clang nvcc; do
  if command -v "$program"; then
    echo "try_wheel: $program: must not be here" >&2
    exit 1
  fi
done
python3 -m venv /opt/tilewise
/opt/tilewise/bin/python -m pip install -qq --disable-pip-version-check --no-cache-dir numpy
/opt/tilewise/bin/python -m pip install -qq --disable-pip-version-check --no-index --find-links /dist tilewise
# The tests' own tool stays out of what is shipped.
python3 -m venv --system-site-packages /tmp/test
/tmp/test/bin/python -m pip install -qq --disable-pip-version-check --no-cache-dir pytest
site=$(/tmp/test/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PATH=/opt/tilewise/bin:$PATH PYTHONPATH=$site /opt/tilewise/bin/python -m pytest -q -p no:cacheprovider /tests
rm -rf /tmp/test
