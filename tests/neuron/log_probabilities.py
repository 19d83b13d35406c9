# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of the kernels whose input are log-probabilities, with every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.experimental import loss
from nkilib.nki import nl

ROWS: Final = 5
CLASSES: Final = 37
# A full tile and one of less than 128 elements.
ELEMENTS: Final = (4, 40)
_ONE: Final = np.array([1.5], np.float32)


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


NLL_FORWARD: Final[dict[str, dict[str, Any]]] = {
    "mean": {"class_weight_hbm": np.abs(_numbers(1, CLASSES)), "ignore_index": 3, "streamed": False},
    "none": {"reduction": "none", "streamed": False},
    "streamed mean": {"class_weight_hbm": np.abs(_numbers(1, CLASSES)), "ignore_index": 3, "streamed": True},
    "streamed none": {"reduction": "none", "streamed": True},
}
NLL_BACKWARD: Final[dict[str, dict[str, Any]]] = {
    "mean": {**NLL_FORWARD["mean"], "grad_loss_hbm": _ONE, "total_weight_hbm": 2 * _ONE},
    "none, in place": {"reduction": "none", "grad_loss_hbm": _numbers(2, ROWS), "inplace": True, "streamed": False},
    "streamed mean": {**NLL_FORWARD["streamed mean"], "grad_loss_hbm": _ONE, "total_weight_hbm": 2 * _ONE},
    "streamed none": {**NLL_FORWARD["streamed none"], "grad_loss_hbm": _numbers(2, ROWS), "inplace": True},
}
KL_FORWARD: Final[dict[str, dict[str, Any]]] = {
    "mean": {"columns": 128, "buffers": 2},
    "none": {"reduction": "none", "dtype": nl.float32},
    "log target": {"log_target": True, "reduction": "batchmean"},
}
KL_BACKWARD: Final[dict[str, dict[str, Any]]] = {
    "mean": {"grad_loss_hbm": _ONE, "grad_target_wanted": True, "inplace": True, "columns": 128, "buffers": 2},
    "none": {"grad_loss_hbm": _numbers(3, *ELEMENTS), "reduction": "none", "log_target": True},
    "target": {"grad_loss_hbm": _ONE, "grad_input_wanted": False, "grad_target_wanted": True},
}


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with an input of a type."""
    targets = np.random.default_rng(4).integers(0, CLASSES, ROWS, dtype=np.int32)
    targets[1] = 3
    gathered = {"input_hbm": _numbers(5, ROWS, CLASSES).astype(numpy_type), "targets_hbm": targets}
    probabilities = np.abs(_numbers(6, *ELEMENTS)).astype(np.float16)
    flat = {"input_hbm": _numbers(7, *ELEMENTS).astype(numpy_type), "target_hbm": probabilities}
    groups: tuple[tuple[Any, dict[str, Any], dict[str, dict[str, Any]]], ...] = (
        (loss.nll_loss_forward, gathered, NLL_FORWARD),
        (loss.nll_loss_backward, gathered, NLL_BACKWARD),
        (loss.kl_div_forward, flat, KL_FORWARD),
        (loss.kl_div_backward, flat, KL_BACKWARD),
    )
    for kernel, common, cases in groups:
        for name, options in cases.items():
            yield f"{kernel.__name__} {name}", kernel, {**common, **options}
