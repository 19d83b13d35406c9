"""Print what ``choose_tiling`` chooses for usual launches, beside what the choice is modelled to take.

The table of docs/kernels.md. Modelled, not measured, on trn2.
"""

from __future__ import annotations

from typing import NamedTuple

from nkilib.experimental.loss import choose_tiling, cross_entropy_backward, cross_entropy_forward
from nkilib.nki import SIMULATED, nl
from nkilib.simulator import profile, spec, using

DTYPES = {"bfloat16": nl.bfloat16, "float32": nl.float32}
POSITIONS = (1, 200, 4096)
VOCABULARIES = (32128, 128256, 202408)


class Row(NamedTuple):
    """A launch on two cores, its chunk size in each direction, and what that is modelled to take."""

    positions: int
    vocabulary: int
    dtype: str
    forward: int
    forward_us: float
    backward: int
    backward_us: float


def row(positions: int, vocabulary: int, dtype: str) -> Row:
    """One line of the table."""
    nl_dtype = DTYPES[dtype]
    arrays = spec((positions, vocabulary), nl_dtype), spec((positions,), nl.int32)
    lse = spec((positions,), nl.float32)
    forward = choose_tiling(positions, vocabulary, nl_dtype, "forward")
    backward = choose_tiling(positions, vocabulary, nl_dtype, "backward")
    with using(target="trn2"):
        there = profile(cross_entropy_forward[2], *arrays, dtype=nl_dtype, lse_dtype=nl.float32, **forward._asdict())
        back = profile(cross_entropy_backward[2], *arrays, lse, dtype=nl_dtype, **backward._asdict())
    return Row(positions, vocabulary, dtype, forward.chunk_size, there.time_us, backward.chunk_size, back.time_us)


def markdown(rows: list[Row]) -> str:
    """The table of docs/kernels.md."""
    lines = [
        "| N | V | logits and tiles | forward: `chunk_size` | time, us | backward: `chunk_size` | time, us |",
        "|---:|---:|---|---:|---:|---:|---:|",
    ]
    for each in rows:
        lines.append(
            f"| {each.positions:,} | {each.vocabulary:,} | {each.dtype} | {each.forward:,} | {each.forward_us:,.1f} | "
            f"{each.backward:,} | {each.backward_us:,.1f} |"
        )
    return "\n".join(lines)


def all_rows() -> list[Row]:
    """The whole table."""
    return [row(n, v, dtype) for dtype in DTYPES for v in VOCABULARIES for n in POSITIONS]


def main() -> int:
    """Print the table; returns 0, or 2 where there is no simulator that models."""
    if not SIMULATED:
        print("This profiles in the simulator, and nkilib runs on the real NKI here: set NKILIB_BACKEND=simulator.")
        return 2
    print(markdown(all_rows()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
