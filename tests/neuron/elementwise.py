# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of the elementwise losses, from their table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.nki import nl
from nkilib.verify.kernels.elementwise import ENTRIES

# A full tile and one of less than 128 elements.
ELEMENTS: Final = (4, 40)
_ONE: Final = np.array([1.5], np.float32)


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with a first tensor of a type."""
    for kind in ENTRIES:
        tensors = kind.made(ELEMENTS, (numpy_type, np.dtype(np.float16)))
        forward = kind.arguments(tensors)
        yield f"{kind.name} forward, mean", kind.forward, {**forward, "columns": 128, "buffers": 2}
        yield f"{kind.name} forward, none", kind.forward, {**forward, "reduction": "none", "dtype": nl.float32}
        backward = kind.backward_arguments(tensors, _ONE)
        yield f"{kind.name} backward", kind.backward, {**backward, "inplace": True, "columns": 128, "buffers": 2}
        upstream = np.full(ELEMENTS, 0.75, np.float32)
        item = kind.backward_arguments(tensors, upstream, **{kind.gradients[-1]: True})
        yield f"{kind.name} backward, none", kind.backward, {**item, "reduction": "none"}
        if kind.both is not None:
            yield f"{kind.name} both", kind.both, {**backward, "inplace": True, "columns": 128, "buffers": 2}
            yield f"{kind.name} both, none", kind.both, {**item, "reduction": "none", "dtype": nl.float32}
