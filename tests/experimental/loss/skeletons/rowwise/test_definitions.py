# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every row-wise loss against float64, within its derived bounds: types, shapes, cores, in place, wrong results; zeros,
ties, infinities, and the ends of the range.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.host.error_bounds import Exact
from nkilib.core.host.options import REDUCTIONS
from nkilib.experimental.loss import (
    cosine_embedding_loss_backward,
    cosine_embedding_loss_forward,
    multilabel_soft_margin_loss_backward,
    multilabel_soft_margin_loss_forward,
    triplet_margin_loss_backward,
    triplet_margin_loss_forward,
)
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.skeletons.rowwise import host as reference
from nkilib.nki import nl
from nkilib.verify.kernels.rowwise import ENTRIES, RowwiseEntry

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


ONE = np.ones(1, np.float32)


def test_distances_in_the_whole_range() -> None:
    """Square roots are documented on a part of it."""
    sizes = np.array([0.0, 2e-19, 1e-15, 1e-3, 1.0, 1e17, 1e18, 9e18], np.float32)
    anchor = np.stack([sizes, np.zeros_like(sizes)], axis=1)
    zeros = np.zeros_like(anchor)
    inputs = anchor, zeros, anchor.copy()
    loss, coefficients = triplet_margin_loss_forward[2](*inputs, margin=1e-30, eps=0.0, reduction="none")
    np.testing.assert_allclose(loss, sizes, rtol=1e-6, atol=1e-29)
    options = {"eps": 0.0, "reduction": "sum"}
    by_anchor, by_positive, by_negative = triplet_margin_loss_backward[2](*inputs, coefficients, ONE, **options)
    np.testing.assert_allclose(by_anchor[:, 0], np.sign(sizes), rtol=1e-6)
    np.testing.assert_array_equal(by_positive, -by_anchor)
    np.testing.assert_array_equal(by_negative, zeros)  # of a distance of 0


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_distances_of_other_norms_in_the_whole_range(p: float) -> None:
    """Logarithms are documented from 2^-64 on; powers below 2^-126 are flushed to zero."""
    least = max(2.0 ** (-125.0 / p), 2.0**-43)
    sizes = np.array([0.0, least, 1e-12, 1e-3, 1.0, 1e9, 2.0 ** (127.0 / p)], np.float32)
    anchor = np.stack([sizes, -sizes, np.zeros_like(sizes)], axis=1)
    zeros = np.zeros_like(anchor)
    inputs = anchor, zeros, anchor.copy()
    loss, coefficients = triplet_margin_loss_forward[2](*inputs, margin=1e-30, eps=0.0, p=p, reduction="none")
    norm = 2.0 ** (1.0 / p)
    np.testing.assert_allclose(loss[1:-1], norm * sizes[1:-1], rtol=1e-5)
    assert loss[0] < 1e-18 and loss[-1] == np.inf
    options = {"eps": 0.0, "p": p, "reduction": "sum"}
    by_anchor, by_positive, _ = triplet_margin_loss_backward[2](*inputs, coefficients, ONE, **options)
    share = 2.0 ** (-(p - 1.0) / p)
    np.testing.assert_allclose(by_anchor[1:-1], np.outer(np.ones(5), [share, -share, 0.0]), rtol=1e-5)
    np.testing.assert_array_equal(by_anchor[0], 0.0)
    np.testing.assert_array_equal(by_positive, -by_anchor)


def test_infinite_and_overflowing_distances() -> None:
    inf = np.inf
    anchor = np.array([[inf], [0.0], [3e38], [np.nan]], np.float32)
    other = np.array([[0.0], [inf], [0.0], [0.0]], np.float32)
    zeros = np.zeros_like(anchor)
    loss, _ = triplet_margin_loss_forward[2](anchor, zeros, other, reduction="none")
    np.testing.assert_array_equal(loss, [np.nan, 0.0, np.nan, np.nan])  # inf - inf; 1 - inf; squares overflow
    loss, _ = triplet_margin_loss_forward[2](anchor, other, zeros, p=inf, reduction="none")
    assert np.isnan(loss[0]) and loss[1] == inf and loss[2] == 0.0 and np.isnan(loss[3])


def test_ties_share_the_gradient_as_pytorch_has_it() -> None:
    anchor, positive = np.array([[0.0, 3.0]], np.float32), np.array([[0.0, -3.0]], np.float32)
    negative = np.array([[4.0, 0.0]], np.float32)  # 5 from both
    inputs = anchor, positive, negative
    options = {"swap": True, "eps": 0.0, "p": 2.0}
    _, coefficients = triplet_margin_loss_forward[2](*inputs, **options)
    gradients = triplet_margin_loss_backward[2](*inputs, coefficients, ONE, **options)
    expected = ([[0.4, 0.7]], [[0.4, -0.7]], [[-0.8, 0.0]])
    for gradient, known in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, known, atol=1e-6)
    options = {"p": np.inf, "eps": 0.0}
    inputs = np.array([[2.0, -2.0, 1.0]], np.float32), np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)
    _, coefficients = triplet_margin_loss_forward[2](*inputs, **options)
    _, by_positive, _ = triplet_margin_loss_backward[2](*inputs, coefficients, ONE, **options)
    np.testing.assert_array_equal(by_positive, [[-0.5, 0.5, 0.0]])


def test_a_loss_of_just_0_has_a_gradient() -> None:
    """The gradient is that of the clamp of PyTorch."""
    anchor, positive, negative = (np.full((1, 1), value, np.float32) for value in (0.0, 1.0, 2.0))
    loss, coefficients = triplet_margin_loss_forward[2](anchor, positive, negative, margin=1.0, eps=0.0)
    gradient, *_ = triplet_margin_loss_backward[2](anchor, positive, negative, coefficients, ONE, eps=0.0)
    assert loss[0] == 0.0 and gradient[0, 0] == 0.0  # -1 + 1
    _, by_positive, by_negative = triplet_margin_loss_backward[2](
        anchor, positive, negative, coefficients, ONE, eps=0.0
    )
    assert (by_positive[0, 0], by_negative[0, 0]) == (1.0, -1.0)


def test_cosine_of_zeros_and_other_targets() -> None:
    first = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [1e18, 0.0]], np.float32)
    second = np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, 1.0], [1e18, 0.0]], np.float32)
    target = np.array([1.0, -1.0, 0.0, 1.0], np.float32)
    loss, coefficients = cosine_embedding_loss_forward[2](first, second, target, margin=0.25, reduction="none")
    np.testing.assert_allclose(loss, [1.0, 0.75, 0.0, 0.0], atol=1e-6)
    upstream = np.ones(4, np.float32)
    by_first, _ = cosine_embedding_loss_backward[2](first, second, coefficients, upstream, reduction="none")
    np.testing.assert_allclose(by_first[0], [-1e6 / np.sqrt(5), -2e6 / np.sqrt(5)], rtol=1e-6)
    np.testing.assert_allclose(by_first[1], [0.0, 0.0], atol=1e-6)


def test_logits_without_end() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[inf], [inf], [-inf], [-inf], [inf], [-20.0], [100.0], [-100.0]], np.float32)
    t = np.array([[0.0], [1.0], [1.0], [0.0], [0.5], [0.0], [1.0], [1.0]], np.float32)
    for number in (1, 4):
        loss = multilabel_soft_margin_loss_forward[2](x, t, reduction="none", each=number)
        np.testing.assert_allclose(
            loss, [inf, nan, inf, nan, inf, 2.0611536e-09, 3.8e-44, 100.0], rtol=1e-6, atol=1e-43
        )
        by_input, by_target = multilabel_soft_margin_loss_backward[2](
            x, t, np.ones(8, np.float32), reduction="none", grad_target_wanted=True, each=number
        )
        np.testing.assert_allclose(by_input[:5, 0], [1.0, 0.0, -1.0, 0.0, 0.5])
        np.testing.assert_array_equal(by_target, -x)


@pytest.mark.parametrize("columns", [32, 700])
def test_a_weight_of_each_row_is_one_of_all_rows(columns: int) -> None:
    random = np.random.default_rng(columns)
    x, t = random.standard_normal((300, columns), np.float32), random.random((300, columns), np.float32)
    weight = random.random((1, columns), np.float32)
    every = np.ascontiguousarray(np.broadcast_to(weight, x.shape))
    result = [multilabel_soft_margin_loss_forward[2](x, t, item, reduction="none") for item in (weight, every)]
    assert result[0].tobytes() == result[1].tobytes()
    wanted = {"grad_input_wanted": False, "grad_weight_wanted": True}
    of_all, of_each = (multilabel_soft_margin_loss_backward[2](x, t, ONE, item, **wanted) for item in (weight, every))
    assert of_each.shape == x.shape
    np.testing.assert_allclose(of_all[0], of_each.astype(np.float64).sum(axis=0), rtol=1e-5)
