# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Row-wise losses for zeros, ties, infinities, and the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.experimental.loss import (
    cosine_embedding_loss_backward,
    cosine_embedding_loss_forward,
    multilabel_soft_margin_loss_backward,
    multilabel_soft_margin_loss_forward,
    triplet_margin_loss_backward,
    triplet_margin_loss_forward,
)

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
