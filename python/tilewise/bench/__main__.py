"""Entry of `python -m tilewise.bench`: see cli.py."""

import sys

from tilewise.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
