# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of the row-wise losses, from their table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from nkilib.nki import nl
from nkilib.verify.kernels.rowwise import ENTRIES, RowwiseEntry

# Short rows, several in a partition and less than a tile; and rows of two chunks.
SHORT, LONG = (5, 37), (3, 300)
_ONE: Final = np.array([1.5], np.float32)
_CHUNKS: Final = {"columns": 256, "each": 1, "buffers": 2}


Arguments = dict[str, Any]


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, Arguments | Callable[[], Arguments]]]:
    """Name, kernel and arguments of each, with a first tensor of a type.

    Those of a backward are made when they are asked for, once: coefficients are results of a launch.
    """
    for kind in ENTRIES:
        tensors = kind.made(LONG, (numpy_type, np.dtype(np.float16)))
        forward = kind.arguments(tensors)
        yield f"{kind.name} forward, mean", kind.forward, {**forward, **_CHUNKS}
        without = {"coefficients_wanted": False} if kind.has_coefficients else {}
        options = {"reduction": "none", "dtype": nl.float32, **without}
        yield f"{kind.name} forward, none", kind.forward, {**forward, **options}
        yield f"{kind.name} backward", kind.backward, _backward(kind, tensors, {"inplace": True, **_CHUNKS})
        options = {"reduction": "none", "each": 2, "columns": SHORT[1]}
        upstream = np.full(SHORT[0], 0.75, np.float32)
        last = _backward(kind, kind.made(SHORT), options, upstream, kind.gradients[-1])
        yield f"{kind.name} backward, none", kind.backward, last
        first = _backward(kind, tensors, {"reduction": "sum"}, wanted=kind.gradients[0])
        yield f"{kind.name} backward, one gradient", kind.backward, first


def _backward(
    kind: RowwiseEntry, tensors: Arguments, options: Arguments, upstream: np.ndarray = _ONE, wanted: str | None = None
) -> Callable[[], Arguments]:
    """What makes the arguments of a backward: every gradient, or the one that is wanted."""
    flags = {} if wanted is None else {wanted: True}
    return functools.cache(lambda: {**kind.backward_arguments(tensors, upstream, **flags), **options})
