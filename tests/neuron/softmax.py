# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of softmax and log-softmax, with every option and each way of going along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.experimental import softmax
from nkilib.nki import nl

# Tiny rows, short ones, several pieces, several partitions; a middle axis, tiny, long, transposed by DMA in
# 16 bits, and short.
SHAPES: Final[dict[str, tuple[tuple[int, ...], dict[str, Any]]]] = {
    "tiny": ((300, 7), {}),
    "short": ((130, 90), {}),
    "kept": ((130, 600), {}),
    "pieces": ((3, 600), {"chunk_size": 250}),
    "partitions": ((2, 30001), {}),
    "more partitions": ((3, 1001), {"partitions_per_row": 4}),
    "middle": ((2, 5, 7), {"axis": 1}),
    "long middle": ((2, 150, 40), {"axis": 1}),
    "transposed middle": ((2, 130, 256), {"axis": 1}),
    "short middle": ((2, 21, 300), {"axis": 1}),
    "float32": ((3, 90), {"dtype": nl.float32}),
}


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with inputs of a type."""
    rng = np.random.default_rng(11)
    forward = softmax.softmax_forward, softmax.log_softmax_forward
    backward = softmax.softmax_backward, softmax.log_softmax_backward
    for name, (shape, options) in SHAPES.items():
        x, output = (rng.standard_normal(shape, dtype=np.float32).astype(numpy_type) for _ in range(2))
        for kernel in forward:
            yield f"{kernel.__name__} {name}", kernel, {"x_hbm": x, **options}
        for kernel in backward:
            yield f"{kernel.__name__} {name}", kernel, {"grad_hbm": x, "output_hbm": output, **options}
    for kernel in backward:
        grad, output = (rng.standard_normal((3, 90), dtype=np.float32).astype(numpy_type) for _ in range(2))
        yield f"{kernel.__name__} in place", kernel, {"grad_hbm": grad, "output_hbm": output, "inplace": True}
