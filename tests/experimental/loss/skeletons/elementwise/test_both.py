# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients in one launch: the bits of both launches, in less time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss.skeletons.elementwise.host import reference
from nkilib.simulator import profile, spec
from nkilib.verify.kernels.elementwise_entries import ENTRIES, ElementwiseEntry

from .test_definitions import is_within, of_both_cores

BOTH = [entry for entry in ENTRIES if entry.both is not None]
every_entry = pytest.mark.parametrize("entry", BOTH, ids=lambda entry: entry.name)
TILING = {"columns": 512, "buffers": 2}


@every_entry
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_bits_of_both_launches(entry: ElementwiseEntry, reduction: str, dtype: Any) -> None:
    """The results are bitwise identical to those of forward and backward with the same tiling."""
    tensors = entry.made((130, 700), (dtype,))
    upstream = np.full((130, 700) if reduction == "none" else (1,), 1.5, np.float32)
    arguments = entry.backward_arguments(tensors, upstream)
    loss, *gradients = of_both_cores(entry.both, **arguments, reduction=reduction, **TILING)
    assert loss.tobytes() == entry.forward[2](**entry.arguments(tensors), reduction=reduction, **TILING).tobytes()
    expected = entry.backward[2](**arguments, reduction=reduction, **TILING)
    for name, gradient, known in zip(entry.gradients, gradients, expected, strict=True):
        assert gradient.tobytes() == known.tobytes() and gradient.dtype == tensors[name].dtype


@every_entry
def test_the_bounds_hold_and_tell_wrong_results(entry: ElementwiseEntry) -> None:
    """The launch takes the tiling that is chosen, and only the gradient of the input, in place."""
    tensors = entry.made((40, 40))
    upstream = np.full(1, -2.0, np.float32)
    arguments = entry.backward_arguments({**tensors, "input": tensors["input"].copy()}, upstream, input=True)
    loss, gradient = entry.both[2](**arguments, inplace=True)
    exact = reference.gradients(entry.reference, tensors, upstream, "mean")["input"]
    assert is_within(loss, reference.reduced(entry.reference, tensors, "mean", columns=512)) and is_within(
        gradient, exact
    )
    assert gradient.tobytes() == arguments["input_hbm"].tobytes()
    assert not any(is_within(wrong, exact) for wrong in (np.zeros_like(gradient), -gradient, gradient.T.copy()))


def test_the_tensors_are_read_once() -> None:
    """Modelled for two cores of trn2."""
    (entry, *_) = BOTH
    for dtype, most in (("bfloat16", 1.1), ("float32", 1.05)):
        tensors = {f"{name}_hbm": spec((4096, 32128), dtype) for name in entry.tensors}
        arguments = {**tensors, **{f"{name}_hbm": None for name in entry.absent}}
        grad = spec((1,), "float32")
        both = profile(entry.both[2], **arguments, grad_loss_hbm=grad)
        apart = (
            profile(entry.forward[2], **arguments).time_us
            + profile(entry.backward[2], **arguments, grad_loss_hbm=grad).time_us
        )
        assert both.fraction_of_bound is not None and both.fraction_of_bound <= most
        assert both.time_us <= 0.66 * apart
