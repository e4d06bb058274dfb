"""Checks the direction of includes that docs/architecture.md draws.

include <- core <- formats <- expression <- operations <- backends <- (verify, python, tools), and jit <- gpu beside
operations; an operation includes nothing of another one, and core knows none: it speaks of no tensor dimension that has
a meaning. Of device, attention includes sm90 or tile, linear and moe product, sm90 and product include tile and tile
includes common; sm90 and tile speak of no attention. The library itself needs the standard library, the system and
DLPack's header, and nothing else. Prints every violation; exit status 1 if any.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = {".h", ".hpp", ".c", ".cpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# Headers of the system that the library may use; those of the C++ library have neither dot nor slash.
SYSTEM = re.compile(
    r"[a-z0-9_]+|(std\w+|[a-z]+intrin|arm_neon|cpuid|dlfcn|elf|fcntl)\.h"
    r"|(grp|link|poll|pthread|pwd|sched|signal|spawn|unistd)\.h"
    r"|(sys|asm|linux)/\w+\.h"
)


@dataclass(frozen=True)
class Layer:
    """A folder, the quoted includes its files may have (besides files beside them) and the angled ones."""

    folder: str
    quoted: re.Pattern[str]
    angled: re.Pattern[str]


def layer(folder: str, *prefixes: str, angled: re.Pattern[str] = SYSTEM) -> Layer:
    return Layer(folder, re.compile("|".join(re.escape(prefix) for prefix in prefixes) or "(?!)"), angled)


WITH_DLPACK = re.compile(rf"dlpack/dlpack\.h|{SYSTEM.pattern}")
WITH_FIBERS = re.compile(rf"ucontext\.h|sanitizer/\w+\.h|{SYSTEM.pattern}")
ANYTHING = re.compile(".+")
INTEGERS = re.compile(r"stdint\.h")  # all that NVRTC and hipRTC are given
CORE = ("tilewise/", "core/")
SHARED = (*CORE, "device/common/")
FORMATS = (*SHARED, "formats/")
EXPRESSION = (*FORMATS, "expression/")
OPERATIONS = (*EXPRESSION, "operations/")
# What a schema is, and what follows from one, for every operation.
SCHEMA = (
    "operations/schema.hpp",
    "operations/derived/",
    "operations/layout.hpp",
    "operations/elements.hpp",
    "operations/table_shapes.hpp",
)
OPERATION_NAMES = tuple(
    path.name
    for path in (Path(__file__).parents[2] / "src/operations").iterdir()
    if path.is_dir() and path.name != "derived"
)
# Kernels that are attention's, or made of its parts.
ATTENDING = ("hopper", "kv_cache")
# Those made of products.
MULTIPLYING = ("linear", "moe")
# What the host knows of kernels.
KERNELS = tuple(
    f"device/{name}/{header}.h"
    for name in (*OPERATION_NAMES, "hopper", "gemm/sm90", "moe/sm90", "moe/sm90/backward", "product")
    for header in ("config", "params")
)
TOP = (*OPERATIONS, "jit/", "gpu/", "backends/", "verify/", "ceilings/")
# Words of operations, which neither the framework nor the tiles of kernels may speak of.
FOREIGN_TO_CORE = re.compile(
    r"attention|\bheads?\b|num_heads|sequences?\b|seqlen|\bmask(s|ed)?\b|softmax", re.IGNORECASE
)
FOREIGN_TO_TILES = re.compile(r"attention|\bheads?\b|head_dim|\bquer(y|ies)\b|sequences?\b|seqlen", re.IGNORECASE)
FOREIGN_TO_HOPPER = re.compile(rf"{FOREIGN_TO_TILES.pattern}|\bkeys?\b|softmax", re.IGNORECASE)
FOREIGN = {"src/core": FOREIGN_TO_CORE, "src/device/tile": FOREIGN_TO_TILES, "src/device/sm90": FOREIGN_TO_HOPPER}
# A file belongs to the first layer whose folder holds it.
LAYERS = (
    layer("include/tilewise", "tilewise/", angled=WITH_DLPACK),
    layer("src/device/common", "device/common/", angled=INTEGERS),
    layer("src/device/tile", "device/tile/", "device/common/", angled=INTEGERS),
    layer("src/device/sm90", "device/sm90/", "device/tile/", "device/common/", angled=INTEGERS),
    layer("src/device/product", "device/product/", "device/tile/", "device/common/", angled=INTEGERS),
    layer("src/device/gemm", "device/gemm/", "device/sm90/", "device/tile/", "device/common/", angled=INTEGERS),
    layer(
        "src/device/moe/sm90",
        "device/moe/",
        "device/gemm/",
        "device/sm90/",
        "device/tile/",
        "device/common/",
        angled=INTEGERS,
    ),
    *(
        layer(
            f"src/device/{name}",
            f"device/{name}/",
            *(("device/product/",) if name in MULTIPLYING else ()),
            "device/tile/",
            "device/common/",
            angled=INTEGERS,
        )
        for name in OPERATION_NAMES
        if name not in ATTENDING
    ),
    *(
        layer(
            f"src/device/{name}",
            f"device/{name}/",
            *(("device/kv_cache/", "device/sm90/") if name == "hopper" else ()),
            "device/attention/",
            "device/tile/",
            "device/common/",
            angled=INTEGERS,
        )
        for name in ATTENDING
    ),
    layer("src/core", *CORE, angled=WITH_DLPACK),
    layer("src/formats", *FORMATS),
    layer("src/expression", *EXPRESSION),
    *(
        layer(
            f"src/operations/{name}",
            *EXPRESSION,
            *SCHEMA,
            f"operations/{name}/",
            "operations/activation.hpp",
            "operations/block_formats.hpp",
            "operations/block_mask.hpp",
            "operations/block_mask_word.hpp",
            "operations/matrices.hpp",
            "operations/matrix_views.hpp",
            "operations/functions_in_c.hpp",
            "operations/host_copies.hpp",
            "operations/score_functions.hpp",
            "operations/score_names.hpp",
            "operations/selected_keys.hpp",
            "operations/host_copies.hpp",
        )
        for name in OPERATION_NAMES
    ),
    layer("src/operations/derived", *SHARED, *SCHEMA),
    layer("src/operations", *OPERATIONS),
    layer("src/jit", *SHARED, "jit/"),
    layer("src/gpu", *SHARED, "jit/", "gpu/"),
    layer("src/backends/reference", *OPERATIONS, "jit/", "backends/reference/"),
    layer("src/backends/cpu", *OPERATIONS, "jit/", "backends/cpu/", "backends/attended_rows.hpp"),
    layer(
        "src/backends/emulation", *OPERATIONS, *KERNELS, "jit/", "gpu/", "backends/", "device/tile/", angled=WITH_FIBERS
    ),
    layer("src/backends", *OPERATIONS, *KERNELS, "jit/", "gpu/", "backends/"),
    layer("src/verify", *OPERATIONS, "jit/", "backends/", "verify/"),
    layer("python/src", *TOP, angled=ANYTHING),
    layer("tools", *TOP, angled=ANYTHING),
)


def violations(root: Path, path: Path) -> list[str]:
    relative = path.relative_to(root)
    own = next((layer for layer in LAYERS if relative.is_relative_to(layer.folder)), None)
    if own is None:
        return []
    text = path.read_text()
    found = []
    if foreign := FOREIGN.get(own.folder):
        found = [f"{relative}: {own.folder} must not speak of '{word.group(0)}'" for word in foreign.finditer(text)]
    if own.folder.startswith("src/backends"):  # a new feature is claimed by nobody until somebody lists it
        found += [f"{relative}: {own.folder} must list features one by one" for _ in re.finditer(r"\ball\(\)", text)]
    for match in INCLUDE.finditer(text):
        kind, name = match.groups()
        if kind == '"':
            beside = (path.parent / name).resolve()
            fine = own.quoted.match(name) or (beside.exists() and beside.is_relative_to((root / own.folder).resolve()))
        else:
            fine = own.angled.fullmatch(name)
        if not fine:
            found.append(f"{relative}: {own.folder} must not include {match.group(0).split('include')[1].strip()}")
    return found


def main() -> int:
    root = Path(sys.argv[1]).resolve()
    files = sorted(path for layer in LAYERS for path in (root / layer.folder).rglob("*") if path.suffix in SUFFIXES)
    if not files:
        print(f"no sources under {root}")
        return 1
    found = [line for path in dict.fromkeys(files) for line in violations(root, path)]
    print("\n".join(found) if found else f"{len(dict.fromkeys(files))} files keep the direction of includes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
