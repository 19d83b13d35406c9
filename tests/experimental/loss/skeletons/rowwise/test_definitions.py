# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every row-wise loss against float64, within its derived bounds: types, shapes, cores, in place, wrong results."""

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
from nkilib.experimental.loss.skeletons.rowwise.host import reference
from nkilib.nki import nl
from nkilib.verify.kernels.rowwise_entries import ENTRIES, RowwiseEntry

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
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def is_within(result: Any, exact: Exact) -> bool:
    """Every number of which float32 has one side only to be on."""
    is_sure = np.isfinite(exact.error)
    assert is_sure.mean() > 0.9
    return bool(error_over_bound(result, exact.value, exact.error)[is_sure].max() <= 1.0)


def as_tuple(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def of_both_cores(kernel: Any, **arguments: Any) -> tuple[Any, ...]:
    """Launch a kernel and return its results, which must be bitwise identical on one core and on two."""
    one, two = (as_tuple(kernel[cores](**arguments)) for cores in (1, 2))
    for left, right in zip(one, two, strict=True):
        assert left.tobytes() == right.tobytes()
    return two


def backward_of(entry: RowwiseEntry, tensors: Any, upstream: Any, reduction: str, **options: Any) -> tuple[Any, ...]:
    arguments = entry.backward_arguments(tensors, upstream)
    return of_both_cores(entry.backward, **arguments, reduction=reduction, **options)


@every_entry
@settings(deadline=None, max_examples=5)
@given(
    launch=st.sampled_from(LAUNCHES),
    types=st.tuples(*[st.sampled_from(sorted(TYPES))] * 2),
    reduction=st.sampled_from(REDUCTIONS),
    buffers=st.sampled_from([2, 3]),
)
def test_losses_and_gradients(
    entry: RowwiseEntry, launch: Any, types: tuple[str, str], reduction: str, buffers: int
) -> None:
    shape, options = launch[0], {**launch[1], "buffers": buffers}
    tensors = entry.made(shape, tuple(TYPES[name] for name in types))
    loss, *_ = of_both_cores(entry.forward, **entry.arguments(tensors), reduction=reduction, **options)
    if reduction == "none":
        assert loss.dtype == TYPES[types[0]] and loss.shape == shape[:1]
        assert is_within(loss, reference.losses(entry.reference, tensors, loss.dtype))
    else:
        assert loss.dtype == np.float32
        assert is_within(loss, reference.reduced(entry.reference, tensors, reduction))
    upstream = np.full(shape[0] if reduction == "none" else 1, -1.75, np.float32)
    exact = reference.gradients(entry.reference, tensors, upstream, reduction)
    for name, gradient in zip(
        entry.gradients, backward_of(entry, tensors, upstream, reduction, **options), strict=True
    ):
        assert gradient.dtype == tensors[name].dtype and gradient.shape == tensors[name].shape
        is_sure = np.isfinite(exact[name].error)
        assert error_over_bound(gradient, exact[name].value, exact[name].error)[is_sure].max(initial=0.0) <= 1.0


@every_entry
@pytest.mark.parametrize("each", [1, 4])
def test_the_bounds_tell_wrong_results(entry: RowwiseEntry, each: int) -> None:
    tensors = entry.made((40, 40))
    loss, *_ = as_tuple(entry.forward[2](**entry.arguments(tensors), reduction="none", each=each))
    upstream = np.linspace(1.0, 2.0, 40, dtype=np.float32)
    gradients = backward_of(entry, tensors, upstream, "none", each=each)
    exact = reference.gradients(entry.reference, tensors, upstream, "none")
    pairs = [(loss, reference.losses(entry.reference, tensors, np.float32))]
    pairs += [(gradient, exact[name]) for name, gradient in zip(entry.gradients, gradients, strict=True)]
    for result, known in pairs:
        assert is_within(result, known)
        wrong_results = (np.zeros_like(result), -result, np.flip(result).copy(), result * np.float32(1.001))
        assert not any(is_within(wrong, known) for wrong in wrong_results)
        assert result.shape != (40, 40) or not is_within(result.T.copy(), known)


@every_entry
def test_one_gradient_alone_and_in_place(entry: RowwiseEntry) -> None:
    """Each has the bits that it has beside the others; written over the first tensor too."""
    tensors = entry.made((150, 600))
    upstream = np.full(1, 2.5, np.float32)
    tiling = {"columns": 256, "each": 1}
    every = as_tuple(entry.backward[2](**entry.backward_arguments(tensors, upstream), **tiling))
    for name, expected in zip(entry.gradients, every, strict=True):
        alone = entry.backward[2](**entry.backward_arguments(tensors, upstream, **{name: True}), **tiling)
        assert alone.tobytes() == expected.tobytes()
    first = entry.gradients[0]
    arguments = entry.backward_arguments(tensors, upstream, **{first: True})
    result = entry.backward[2](**arguments, **tiling, inplace=True)
    assert result.tobytes() == every[0].tobytes() == arguments[f"{first}_hbm"].tobytes()


@every_entry
def test_the_type_of_losses_and_no_coefficients(entry: RowwiseEntry) -> None:
    tensors = entry.made((3, 5), (ml_dtypes.bfloat16,))
    without = {"coefficients_wanted": False} if entry.has_coefficients else {}
    result = entry.forward[2](**entry.arguments(tensors), reduction="none", dtype=nl.float32, **without)
    assert result.dtype == np.float32 and is_within(result, reference.losses(entry.reference, tensors, np.float32))


@every_entry
@pytest.mark.parametrize(("shape", "row"), [((130, 700), 7), ((600, 8), 77)])
def test_a_row_with_nan_leaves_the_others(entry: RowwiseEntry, shape: tuple[int, int], row: int) -> None:
    tensors = entry.made(shape)
    tensors[entry.gradients[0]][row, 3] = np.nan
    for target in (tensor for name, tensor in tensors.items() if tensor.ndim == 1):
        target[row] = 1.0
    loss, *_ = as_tuple(entry.forward[2](**entry.arguments(tensors), reduction="none"))
    assert np.isnan(loss[row]) and np.isfinite(np.delete(loss, row)).all()
    (total,) = as_tuple(entry.forward[2](**entry.arguments(tensors), reduction="sum"))[0]
    assert np.isnan(total)
    gradients = entry.backward[2](**entry.backward_arguments(tensors, np.ones(1, np.float32)), reduction="sum")
    for name, gradient in zip(entry.gradients, gradients, strict=True):
        is_shared = tensors[name].shape[0] == 1  # of all rows: by columns
        assert np.isfinite(np.delete(gradient, 3 if is_shared else row, axis=1 if is_shared else 0)).all()
