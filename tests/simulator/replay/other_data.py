# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Other data of the same shapes and types, on which a recorded launch is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Where arithmetic is at its edges; rounded to the type, in which some are infinite or 0.
_HARD: Final = (np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -1e-44, 1e30, -1e30, 3e38, 88.8, -103.9, 65504.0)
# One of so many elements becomes a hard one, and at least one does.
_RARITY: Final = 97
_SEED: Final = 20
_FACTORS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, -1.0)


def is_floating(array: Array) -> bool:
    """Whether its elements are floating-point numbers, those of ml_dtypes among them."""
    try:
        ml_dtypes.finfo(array.dtype)
    except (ValueError, TypeError):
        return False
    return True


def permuted(array: Array) -> Array:
    """The same elements in another order: indices and lengths stay legal ones."""
    rng = np.random.default_rng((_SEED, array.size))
    return np.array(array).reshape(-1)[rng.permutation(array.size)].reshape(array.shape)


def redrawn(array: Array) -> Array:
    """Floating-point numbers in another order, some of them times another factor; integers in another order."""
    if not is_floating(array):
        return permuted(array)
    rng = np.random.default_rng((_SEED + 1, array.size))
    factors = rng.choice(_FACTORS, array.shape)
    return np.asarray(permuted(array).astype(np.float32) * factors, array.dtype)


def hardened(array: Array) -> Array:
    """Redraw, with infinities, NaN, zeros of both signs, denormal and very large numbers among the values."""
    values = redrawn(array)
    if not is_floating(array) or not array.size:
        return values
    rng = np.random.default_rng((_SEED + 2, array.size))
    flat = values.reshape(-1)
    places = rng.choice(array.size, max(1, array.size // _RARITY), replace=False)
    with np.errstate(all="ignore"):
        flat[places] = rng.choice(_HARD, len(places)).astype(np.float32).astype(array.dtype)
    return flat.reshape(array.shape)


OTHERS: Final[dict[str, Callable[[Array], Array]]] = {
    "permuted data": permuted,
    "other data": redrawn,
    "hard data": hardened,
}
