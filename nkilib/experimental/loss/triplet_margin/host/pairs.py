# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Which distances a triplet margin loss takes, and what each gradient needs of them: arithmetic only."""

from __future__ import annotations

from typing import Final

ANCHOR, POSITIVE, NEGATIVE = 0, 1, 2
# Tensors whose distance is taken, in order; the last one for ``swap`` alone.
PAIRS: Final = ((ANCHOR, POSITIVE), (ANCHOR, NEGATIVE), (POSITIVE, NEGATIVE))


def pairs_of(swap: bool) -> tuple[tuple[int, int], ...]:
    """The distances that there are."""
    return PAIRS if swap else PAIRS[:2]


def needed_pairs(wanted: tuple[int, ...], swap: bool) -> list[int]:
    """Numbers of the distances whose derivatives gradients by the ``wanted`` tensors are made of."""
    return [number for number, pair in enumerate(pairs_of(swap)) if set(pair) & set(wanted)]


def needed_tensors(wanted: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    """Tensors of these distances."""
    return tuple(sorted({tensor for number in needed_pairs(wanted, swap) for tensor in PAIRS[number]}))


def num_coefficients(p: float, swap: bool) -> int:
    """A number a distance; but for p = 1 and 2 another one, made of the distance, which its derivative takes."""
    return len(pairs_of(swap)) * (1 if p in (1.0, 2.0) else 2)


def forward_tiles(swap: bool) -> int:
    """Float32 tiles of a piece: a difference a pair."""
    return len(pairs_of(swap))


def backward_tiles(swap: bool) -> int:
    """Half of those of a piece: two a pair, and two for each gradient of two terms."""
    return 6 if swap else 4
