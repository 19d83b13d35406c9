# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of the row-wise losses, from their table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.nki import nl
from nkilib.verify.kernels.rowwise_entries import ENTRIES

# Short rows, several in a partition and less than a tile; and rows of two chunks.
SHORT, LONG = (5, 37), (3, 300)
_ONE: Final = np.array([1.5], np.float32)
_CHUNKS: Final = {"columns": 256, "each": 1, "buffers": 2}


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with a first tensor of a type."""
    for kind in ENTRIES:
        tensors = kind.made(LONG, (numpy_type, np.dtype(np.float16)))
        forward = kind.arguments(tensors)
        yield f"{kind.name} forward, mean", kind.forward, {**forward, **_CHUNKS}
        without = {"coefficients_wanted": False} if kind.has_coefficients else {}
        options = {"reduction": "none", "dtype": nl.float32, **without}
        yield f"{kind.name} forward, none", kind.forward, {**forward, **options}
        backward = kind.backward_arguments(tensors, _ONE)
        yield f"{kind.name} backward", kind.backward, {**backward, "inplace": True, **_CHUNKS}
        upstream = np.full(SHORT[0], 0.75, np.float32)
        item = kind.backward_arguments(kind.made(SHORT), upstream, **{kind.gradients[-1]: True})
        yield (
            f"{kind.name} backward, none",
            kind.backward,
            {**item, "reduction": "none", "each": 2, "columns": SHORT[1]},
        )
        first = kind.backward_arguments(tensors, _ONE, **{kind.gradients[0]: True})
        yield f"{kind.name} backward, one gradient", kind.backward, {**first, "reduction": "sum"}
