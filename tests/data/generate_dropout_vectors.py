"""Fixed vectors of Philox4x32-10 and of the dropout map, written from docs/semantics.md alone.

Shares no code with the library, so that the vectors check it. Run it to rewrite
dropout_vectors.json beside it: `python3 tests/data/generate_dropout_vectors.py`.
"""

import json
from pathlib import Path

MASK32 = 0xFFFFFFFF


def philox4x32_10(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds on four 32-bit words; the key grows by the Weyl constants after each."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = 0xD2511F53 * c0
        product1 = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & MASK32, (product0 >> 32) ^ c3 ^ k1, product0 & MASK32
        k0 = (k0 + 0x9E3779B9) & MASK32
        k1 = (k1 + 0xBB67AE85) & MASK32
    return [c0, c1, c2, c3]


def dropout_draw(seed: int, offset: int, batch_head: int, query: int, key: int) -> int:
    """The 16-bit draw of one position; dropped when below 65536 * dropout_p."""
    words = philox4x32_10(
        [4 * (key // 32) + (key % 8) // 2, query, batch_head, offset & MASK32],
        [seed & MASK32, (seed >> 32) ^ (offset >> 32)],
    )
    return words[(key % 32) // 8] >> (16 * (key % 2)) & 0xFFFF


def main() -> None:
    """Writes the vectors; 64-bit numbers are strings, since JSON readers round large ones."""
    philox = [
        ([0, 0, 0, 0], [0, 0]),
        ([MASK32] * 4, [MASK32] * 2),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]),
    ]
    # seed, offset, batch * num_heads_q + head, query, key: zero, every half and word, and large values.
    positions = [(0, 0, 0, 0, key) for key in (*range(34), 39, 40, 63, 64, 8191)]
    positions += [(0x123456789ABCDEF0, 0xFEDCBA9876543210, 5, 1000, key) for key in (0, 1, 2, 8, 17, 31, 32, 1029)]
    positions += [
        (MASK32 << 32 | 1, 1 << 32, 0, 0, 0),
        (1, 0, 0, 1, 0),
        (0, 1, 0, 0, 0),
        (7, 3, 2147483646, 2147483646, 2147483646),
    ]
    vectors = {
        "philox4x32_10": [{"counter": c, "key": k, "output": philox4x32_10(c, k)} for c, k in philox],
        "dropout_draw": [
            {
                "seed": str(s),
                "offset": str(o),
                "batch_head": b,
                "query": i,
                "key": j,
                "draw": dropout_draw(s, o, b, i, j),
            }
            for s, o, b, i, j in positions
        ],
    }
    lines = [
        f'  "{name}": [\n' + ",\n".join("    " + json.dumps(row) for row in rows) + "\n  ]"
        for name, rows in vectors.items()
    ]
    Path(__file__).with_name("dropout_vectors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
