# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of the kernels of CTC, with every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.experimental import loss
from nkilib.nki import nl

STEPS: Final = 5
SEQUENCES: Final = 3
CLASSES: Final = 4
LABELS: Final = 2
_ONE: Final = np.array([1.5], np.float32)

FORWARD: Final[dict[str, dict[str, Any]]] = {
    "mean": {"blank": 1, "zero_infinity": True},
    "none": {"reduction": "none", "dtype": nl.float32},
}
BACKWARD: Final[dict[str, dict[str, Any]]] = {
    "mean": {**FORWARD["mean"], "grad_loss_hbm": _ONE},
    "none": {"reduction": "none", "grad_loss_hbm": np.ones(SEQUENCES, np.float32)},
}


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with log-probabilities of a type."""
    arguments = {
        "log_probs_hbm": np.full((STEPS, SEQUENCES, CLASSES), -1.386, np.float32).astype(numpy_type),
        "targets_hbm": np.array([[2, 2], [3, 2], [0, 3]], np.int32),
        "input_lengths_hbm": np.array([5, 4, 3], np.int32),
        "target_lengths_hbm": np.array([2, 1, 0], np.int32),
    }
    saved = {
        "nll_hbm": np.ones(SEQUENCES, np.float32),
        "alpha_hbm": np.full((STEPS, SEQUENCES, 2 * LABELS + 1), -3.0, np.float32),
    }
    for name, options in FORWARD.items():
        yield f"ctc_loss_forward {name}", loss.ctc_loss_forward, {**arguments, **options}
    without = {**arguments, "targets_hbm": None}
    yield "ctc_loss_forward without labels", loss.ctc_loss_forward, without
    for name, options in BACKWARD.items():
        yield f"ctc_loss_backward {name}", loss.ctc_loss_backward, {**arguments, **saved, **options}
