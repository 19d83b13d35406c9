"""What the kernels of all losses of elements refuse: each with its whole message, before anything is written."""

from __future__ import annotations

import numpy as np

from nkilib.nki import nl
from tests.experimental.refusals import ELEMENTWISE_KERNELS, Kernel, Refusal, assert_refused, parametrized

BACKWARDS = tuple(name for name in ELEMENTWISE_KERNELS if name.endswith("_backward"))

REFUSALS = [
    Refusal(
        "no elements",
        "{matrix} must have at least one element, got shape (3, 0); launch nothing",
        {"{matrix}": np.ones((3, 0), np.float32)},
    ),
    Refusal(
        "int32",
        "{matrix}.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"{matrix}": np.ones((3, 100), np.int32)},
    ),
    Refusal(
        "another shape",
        "target_hbm must have the shape of {matrix}, (3, 100), got (3, 99); expand it",
        {"target_hbm": np.ones((3, 99), np.float32)},
    ),
    Refusal("reduction", "reduction must be one of mean, sum, none, got Mean", {"reduction": "Mean"}),
    Refusal(
        "dtype of an integer",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"dtype": nl.int32, "reduction": "none"},
    ),
    Refusal("columns", "columns must be an integer of at least 128, got 100", {"columns": 100}),
    Refusal("buffers", "buffers must be an integer of at least 2, got 1", {"buffers": 1}),
    Refusal(
        "gradient of half precision",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float16 of shape (1,); "
        "sum it up and cast it",
        {"grad_loss_hbm": np.ones(1, np.float16)},
    ),
    Refusal(
        "one gradient for all",
        'grad_loss_hbm must have the shape of the losses, (3, 100), for reduction="none", got (1,); expand it',
        {"reduction": "none", "grad_loss_hbm": np.ones(1, np.float32)},
    ),
    Refusal("inplace", "inplace must be True or False, got 1", {"inplace": 1}),
]


@parametrized(REFUSALS, ELEMENTWISE_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
