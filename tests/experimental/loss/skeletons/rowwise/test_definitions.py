# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every loss of rows against float64, within its derived bounds: types, shapes, cores, in place, wrong results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.host.exact import Exact
from nkilib.core.host.reductions import REDUCTIONS
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.skeletons.rowwise.host import truth
from nkilib.nki import nl
from nkilib.verify.kernels.rowwise_kinds import KINDS, RowwiseKind

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
# Shapes, and how they are cut up: chosen; chunks of long rows; several short rows in a partition.
LAUNCHES: list[tuple[tuple[int, int], dict[str, int]]] = [
    ((1, 1), {}),
    ((5, 37), {}),
    ((300, 40), {}),
    ((2500, 3), {}),
    ((1, 6000), {}),
    ((130, 2600), {"columns": 1100, "each": 1}),
    ((40, 40), {"columns": 16, "each": 1}),
    ((700, 9), {"each": 4}),
    ((900, 130), {"columns": 129, "each": 1}),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def is_within(found: Any, exact: Exact) -> bool:
    """Every number of which float32 has one side only to be on."""
    is_sure = np.isfinite(exact.error)
    assert is_sure.mean() > 0.9
    return bool(error_over_bound(found, exact.value, exact.error)[is_sure].max() <= 1.0)


def as_tuple(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def of_both_cores(kernel: Any, **arguments: Any) -> tuple[Any, ...]:
    """What the kernel returns, with equal bits on one core and on two."""
    one, two = (as_tuple(kernel[cores](**arguments)) for cores in (1, 2))
    for left, right in zip(one, two, strict=True):
        assert left.tobytes() == right.tobytes()
    return two


def backward_of(kind: RowwiseKind, tensors: Any, upstream: Any, reduction: str, **options: Any) -> tuple[Any, ...]:
    given = kind.backward_arguments(tensors, upstream)
    return of_both_cores(kind.backward, **given, reduction=reduction, **options)


@every_kind
@settings(deadline=None, max_examples=5)
@given(
    launch=st.sampled_from(LAUNCHES),
    types=st.tuples(*[st.sampled_from(sorted(TYPES))] * 2),
    reduction=st.sampled_from(REDUCTIONS),
    buffers=st.sampled_from([2, 3]),
)
def test_losses_and_gradients(
    kind: RowwiseKind, launch: Any, types: tuple[str, str], reduction: str, buffers: int
) -> None:
    shape, options = launch[0], {**launch[1], "buffers": buffers}
    tensors = kind.made(shape, tuple(TYPES[name] for name in types))
    loss, *_ = of_both_cores(kind.forward, **kind.arguments(tensors), reduction=reduction, **options)
    if reduction == "none":
        assert loss.dtype == TYPES[types[0]] and loss.shape == shape[:1]
        assert is_within(loss, truth.losses(kind.truth, tensors, loss.dtype))
    else:
        assert loss.dtype == np.float32
        assert is_within(loss, truth.reduced(kind.truth, tensors, reduction))
    upstream = np.full(shape[0] if reduction == "none" else 1, -1.75, np.float32)
    exact = truth.gradients(kind.truth, tensors, upstream, reduction)
    for name, gradient in zip(kind.gradients, backward_of(kind, tensors, upstream, reduction, **options), strict=True):
        assert gradient.dtype == tensors[name].dtype and gradient.shape == tensors[name].shape
        is_sure = np.isfinite(exact[name].error)
        assert error_over_bound(gradient, exact[name].value, exact[name].error)[is_sure].max(initial=0.0) <= 1.0


@every_kind
@pytest.mark.parametrize("each", [1, 4])
def test_the_bounds_tell_wrong_results(kind: RowwiseKind, each: int) -> None:
    tensors = kind.made((40, 40))
    loss, *_ = as_tuple(kind.forward[2](**kind.arguments(tensors), reduction="none", each=each))
    upstream = np.linspace(1.0, 2.0, 40, dtype=np.float32)
    gradients = backward_of(kind, tensors, upstream, "none", each=each)
    exact = truth.gradients(kind.truth, tensors, upstream, "none")
    pairs = [(loss, truth.losses(kind.truth, tensors, np.float32))]
    pairs += [(gradient, exact[name]) for name, gradient in zip(kind.gradients, gradients, strict=True)]
    for result, known in pairs:
        assert is_within(result, known)
        wrong_results = (np.zeros_like(result), -result, np.flip(result).copy(), result * np.float32(1.001))
        assert not any(is_within(wrong, known) for wrong in wrong_results)
        assert result.shape != (40, 40) or not is_within(result.T.copy(), known)


@every_kind
def test_one_gradient_alone_and_in_place(kind: RowwiseKind) -> None:
    """Each has the bits that it has beside the others; written over the first tensor too."""
    tensors = kind.made((150, 600))
    upstream = np.full(1, 2.5, np.float32)
    tiling = {"columns": 256, "each": 1}
    every = as_tuple(kind.backward[2](**kind.backward_arguments(tensors, upstream), **tiling))
    for name, expected in zip(kind.gradients, every, strict=True):
        alone = kind.backward[2](**kind.backward_arguments(tensors, upstream, **{name: True}), **tiling)
        assert alone.tobytes() == expected.tobytes()
    first = kind.gradients[0]
    arguments = kind.backward_arguments(tensors, upstream, **{first: True})
    found = kind.backward[2](**arguments, **tiling, inplace=True)
    assert found.tobytes() == every[0].tobytes() == arguments[f"{first}_hbm"].tobytes()


@every_kind
def test_the_type_of_losses_and_no_coefficients(kind: RowwiseKind) -> None:
    tensors = kind.made((3, 5), (ml_dtypes.bfloat16,))
    without = {"coefficients_wanted": False} if kind.has_coefficients else {}
    found = kind.forward[2](**kind.arguments(tensors), reduction="none", dtype=nl.float32, **without)
    assert found.dtype == np.float32 and is_within(found, truth.losses(kind.truth, tensors, np.float32))


@every_kind
@pytest.mark.parametrize(("shape", "row"), [((130, 700), 7), ((600, 8), 77)])
def test_a_row_with_nan_leaves_the_others(kind: RowwiseKind, shape: tuple[int, int], row: int) -> None:
    tensors = kind.made(shape)
    tensors[kind.gradients[0]][row, 3] = np.nan
    for target in (each for name, each in tensors.items() if each.ndim == 1):
        target[row] = 1.0
    loss, *_ = as_tuple(kind.forward[2](**kind.arguments(tensors), reduction="none"))
    assert np.isnan(loss[row]) and np.isfinite(np.delete(loss, row)).all()
    (total,) = as_tuple(kind.forward[2](**kind.arguments(tensors), reduction="sum"))[0]
    assert np.isnan(total)
    gradients = kind.backward[2](**kind.backward_arguments(tensors, np.ones(1, np.float32)), reduction="sum")
    for name, gradient in zip(kind.gradients, gradients, strict=True):
        is_shared = tensors[name].shape[0] == 1  # of all rows: by columns
        assert np.isfinite(np.delete(gradient, 3 if is_shared else row, axis=1 if is_shared else 0)).all()
