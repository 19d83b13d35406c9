# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients in one launch: the bits of both launches, in less time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss.skeletons.elementwise.host import truth
from nkilib.simulator import profile, spec
from nkilib.verify.kernels.elementwise_kinds import KINDS, ElementwiseKind

from .test_kinds import is_within, of_both_cores

BOTH = [kind for kind in KINDS if kind.both is not None]
every_kind = pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.name)
TILING = {"columns": 512, "buffers": 2}


@every_kind
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_bits_of_both_launches(kind: ElementwiseKind, reduction: str, dtype: Any) -> None:
    """With the same tiling."""
    tensors = kind.made((130, 700), (dtype,))
    upstream = np.full((130, 700) if reduction == "none" else (1,), 1.5, np.float32)
    given = kind.backward_arguments(tensors, upstream)
    loss, *gradients = of_both_cores(kind.both, **given, reduction=reduction, **TILING)
    assert loss.tobytes() == kind.forward[2](**kind.arguments(tensors), reduction=reduction, **TILING).tobytes()
    expected = kind.backward[2](**given, reduction=reduction, **TILING)
    for name, found, known in zip(kind.gradients, gradients, expected, strict=True):
        assert found.tobytes() == known.tobytes() and found.dtype == tensors[name].dtype


@every_kind
def test_the_bounds_hold_and_tell_wrong_results(kind: ElementwiseKind) -> None:
    """With the tiling that is chosen, and the gradient of the input alone, in place."""
    tensors = kind.made((40, 40))
    upstream = np.full(1, -2.0, np.float32)
    given = kind.backward_arguments({**tensors, "input": tensors["input"].copy()}, upstream, input=True)
    loss, gradient = kind.both[2](**given, inplace=True)
    exact = truth.gradients(kind.truth, tensors, upstream, "mean")["input"]
    assert is_within(loss, truth.reduced(kind.truth, tensors, "mean", columns=512)) and is_within(gradient, exact)
    assert gradient.tobytes() == given["input_hbm"].tobytes()
    assert not any(is_within(wrong, exact) for wrong in (np.zeros_like(gradient), -gradient, gradient.T.copy()))


def test_the_tensors_are_read_once() -> None:
    """Modelled for two cores of trn2."""
    (kind, *_) = BOTH
    for dtype, most in (("bfloat16", 1.1), ("float32", 1.05)):
        tensors = {f"{name}_hbm": spec((4096, 32128), dtype) for name in kind.tensors}
        given = {**tensors, **{f"{name}_hbm": None for name in kind.absent}}
        grad = spec((1,), "float32")
        both = profile(kind.both[2], **given, grad_loss_hbm=grad)
        apart = (
            profile(kind.forward[2], **given).time_us + profile(kind.backward[2], **given, grad_loss_hbm=grad).time_us
        )
        assert both.fraction_of_bound is not None and both.fraction_of_bound <= most
        assert both.time_us <= 0.66 * apart
