# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of the kernels of margins between classes, with every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.experimental import loss

ROWS: Final = 5
CLASSES: Final = 37
_ONE: Final = np.array([1.5], np.float32)


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


MULTI_MARGIN: Final[dict[str, dict[str, Any]]] = {
    "mean": {"class_weight_hbm": np.abs(_numbers(1, CLASSES)), "margin": 0.75, "chunk_size": 16},
    "none": {"reduction": "none", "p": 2},
}
UPSTREAM: Final[dict[str, dict[str, Any]]] = {
    "mean": {"grad_loss_hbm": _ONE, "inplace": True},
    "none": {"grad_loss_hbm": _numbers(2, ROWS)},
}


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with an input of a type."""
    targets = np.random.default_rng(4).integers(0, CLASSES, ROWS, dtype=np.int32)
    common = {"input_hbm": _numbers(5, ROWS, CLASSES).astype(numpy_type), "targets_hbm": targets}
    for name, options in MULTI_MARGIN.items():
        forward = {**common, **options}
        yield f"multi_margin_loss_forward {name}", loss.multi_margin_loss_forward, forward
        yield f"multi_margin_loss_backward {name}", loss.multi_margin_loss_backward, {**forward, **UPSTREAM[name]}
    lists = np.random.default_rng(6).integers(0, CLASSES, (ROWS, CLASSES), dtype=np.int32)
    lists[np.arange(ROWS), np.arange(ROWS)] = -1
    common["targets_hbm"] = lists
    for name, upstream in UPSTREAM.items():
        forward = {**common, "reduction": name}
        yield f"multilabel_margin_loss_forward {name}", loss.multilabel_margin_loss_forward, forward
        yield f"multilabel_margin_loss_backward {name}", loss.multilabel_margin_loss_backward, {**forward, **upstream}
