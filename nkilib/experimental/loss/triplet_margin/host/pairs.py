# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pairs of tensors whose distances the loss uses, and the inputs that each gradient needs: arithmetic
only.
"""

from __future__ import annotations

from typing import Final

ANCHOR, POSITIVE, NEGATIVE = 0, 1, 2
# Tensors whose distance is taken, in order; the last one for ``swap`` alone.
PAIRS: Final = ((ANCHOR, POSITIVE), (ANCHOR, NEGATIVE), (POSITIVE, NEGATIVE))


def pairs_of(swap: bool) -> tuple[tuple[int, int], ...]:
    """Return the pairs of tensors whose distances the loss uses, by the numbers of the tensors."""
    return PAIRS if swap else PAIRS[:2]


def needed_pairs(wanted: tuple[int, ...], swap: bool) -> list[int]:
    """Return the numbers of the pairs that contain a ``wanted`` tensor: its gradient needs the derivatives of
    their distances.
    """
    return [number for number, pair in enumerate(pairs_of(swap)) if set(pair) & set(wanted)]


def needed_tensors(wanted: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    """Return the numbers of the tensors of the pairs from :func:`needed_pairs`."""
    return tuple(sorted({tensor for number in needed_pairs(wanted, swap) for tensor in PAIRS[number]}))


def num_coefficients(p: float, swap: bool) -> int:
    """Return the number of coefficients that the forward keeps for each row.

    There is one for each distance; for a p other than 1 and 2 another one, a function of the distance that its
    derivative needs.
    """
    return len(pairs_of(swap)) * (1 if p in (1.0, 2.0) else 2)


def forward_tiles(swap: bool) -> int:
    """Return the number of float32 tiles that a piece takes in the forward: one for the difference of each pair."""
    return len(pairs_of(swap))


def backward_tiles(swap: bool) -> int:
    """Return half of the float32 tiles that a piece takes in the backward, where it has the scratch of two pieces.

    A piece takes two for each pair, and two for each gradient that is the sum of two terms.
    """
    return 6 if swap else 4
