"""Checks that no code compiled for a newer instruction set can stand in for code of an older one.

The linker keeps one copy of an inline function, whoever compiled it. So whatever an object of one
instruction set defines weakly must be defined nowhere else in the library; otherwise an AVX-512
copy might run on a core without AVX-512. Usage: check_symbols.py NM ARCHIVE. Exit status 1 on a clash.
"""

import re
import subprocess
import sys
from collections import defaultdict

INSTRUCTION_SET_OBJECT = re.compile(r"(avx|amx|neon_)\w*\.cpp\.o")
# "libtilewise.a:avx2.cpp.o:0000000000000000 W _ZN..."; weak data (V) holds no instructions.
LINE = re.compile(r".*:([^:]+\.o):\s*[0-9a-f]* W (.+)$")


def main() -> int:
    nm, archive = sys.argv[1:]
    listing = subprocess.run([nm, "-A", "--defined-only", archive], check=True, capture_output=True, text=True).stdout
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for line in listing.splitlines():
        if match := LINE.match(line):
            owners[match.group(2)].add(match.group(1))
    special = {name for names in owners.values() for name in names if INSTRUCTION_SET_OBJECT.fullmatch(name)}
    if not special:
        print(f"{archive}: no object of an instruction set defines anything weakly")
        return 1
    clashes = {symbol: names for symbol, names in owners.items() if len(names) > 1 and names & special}
    for symbol, names in sorted(clashes.items()):
        print(f"{symbol}: defined by {', '.join(sorted(names))}")
    if not clashes:
        print(f"{', '.join(sorted(special))} share no inline code")
    return 1 if clashes else 0


if __name__ == "__main__":
    sys.exit(main())
