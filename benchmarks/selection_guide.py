# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choices of ``choose_tiling`` for usual launches, with their modelled times.

The tables of docs/reference/kernels.md. Modelled, not measured.
"""

from __future__ import annotations

from typing import NamedTuple

from nkilib.experimental.loss import Tiling, choose_tiling
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.nki import NOT_SIMULATED, SIMULATED

TARGET = "trn2"
DTYPES = ("bfloat16", "float32")
POSITIONS = (1, 200, 4096)
VOCABULARIES = (1000, 32128, 128256, 202408)


class Row(NamedTuple):
    """A launch on two cores, with its chunk size or layout and its modelled time in each direction."""

    positions: int
    vocabulary: int
    dtype: str
    forward: str
    forward_us: float
    backward: str
    backward_us: float


def _cut(tiling: Tiling) -> str:
    """The chunk size, or the layout where it is not one position a partition."""
    if tiling.partitions_per_position > 1:
        return f"split over {tiling.partitions_per_position}"
    if tiling.positions_per_partition > 1:
        return f"{tiling.positions_per_partition} packed"
    return f"{tiling.chunk_size:,}"


def row(positions: int, vocabulary: int, dtype: str) -> Row:
    """One line of the table."""
    launch = positions, vocabulary, dtype
    forward = choose_tiling(*launch, "forward", TARGET)
    backward = choose_tiling(*launch, "backward", TARGET)
    there = profile_launch(*launch, "forward", forward, target=TARGET, trips="none", lse_dtype="float32")
    back = profile_launch(*launch, "backward", backward, target=TARGET)
    return Row(*launch, _cut(forward), there.time_us, _cut(backward), back.time_us)


def markdown(rows: list[Row]) -> str:
    """The tables of docs/reference/kernels.md, one for each type."""
    lines = [f"Two cores of {TARGET}, lse in float32, gradient in place. Times are modelled, not measured."]
    for dtype in DTYPES:
        lines += [
            "",
            f"Logits and tiles in {dtype}:",
            "",
            "| N | V | forward: `chunk_size` | time, us | backward: `chunk_size` | time, us |",
            "|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row.positions:,} | {row.vocabulary:,} | {row.forward} | {row.forward_us:,.1f} | "
            f"{row.backward} | {row.backward_us:,.1f} |"
            for row in rows
            if row.dtype == dtype
        ]
    return "\n".join(lines)


def all_rows() -> list[Row]:
    """The whole table."""
    return [row(n, v, dtype) for dtype in DTYPES for v in VOCABULARIES for n in POSITIONS]


def main() -> int:
    """Print the table; returns 0, or 2 where there is no simulator that models."""
    if not SIMULATED:
        print(NOT_SIMULATED)
        return 2
    print(markdown(all_rows()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
