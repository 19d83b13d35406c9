# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Ignored positions, masked logits, infinities and NaN: zeros where promised, elsewhere the class of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.host.reference import ExtendedLoss

from .extended_checks import Array, Launch, Upstream, backward, check_backward, check_forward, forward
from .loss_inputs import BF16, FP32, normal_batch
from .test_hard_rows import INF, NAN, ROWS, _classes

OFF = ExtendedLoss()
LAUNCH = Launch(FP32, 2, 16, 3)


def _batch() -> tuple[Array, Array]:
    rows = np.array([row for row, _ in ROWS.values()], np.float32)
    return rows, np.array([target for _, target in ROWS.values()], np.int32)


def _torch_results(logits: Array, targets: Array, options: ExtendedLoss) -> tuple[Array, Array]:
    """PyTorch's float32 losses and gradient of their sum."""
    import torch
    import torch.nn.functional as F

    x = torch.from_numpy(logits.copy()).requires_grad_()
    z = x
    if options.logit_softcap is not None:
        z = options.logit_softcap * torch.tanh(x / options.logit_softcap)
        z = torch.where(torch.isneginf(x), x, z)
    y = torch.from_numpy(targets)
    weight = None if options.class_weight is None else torch.from_numpy(options.class_weight)
    loss = F.cross_entropy(
        z,
        y.long() if y.ndim == 1 else y,
        weight=weight,
        ignore_index=options.ignore_index if y.ndim == 1 else -100,
        label_smoothing=options.label_smoothing,
        reduction="none",
    )
    if options.lse_square_scale:
        square = options.lse_square_scale * torch.logsumexp(z, dim=1).square()
        loss = loss + torch.where(torch.from_numpy(options.is_valid(targets)), square, torch.zeros_like(square))
    loss.sum().backward()
    assert x.grad is not None
    return loss.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("chunk_size", [1, 3, 8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_have_the_class_of_torch(smoothing: float, chunk_size: int) -> None:
    logits, targets = _batch()
    options = ExtendedLoss(label_smoothing=smoothing)
    expected, _ = _torch_results(logits, targets, options)
    results = forward(logits, targets, options, Launch(FP32, 2, 16, chunk_size))
    # PyTorch's float32 log-probabilities of the range's ends are finite, and so are ours; their sums may not be.
    within = np.abs(np.where(np.isfinite(logits), logits, 0.0)).max(axis=1) < 1e38
    np.testing.assert_array_equal(_classes(results["loss"])[within], _classes(expected)[within])


def test_gradients_have_the_class_of_torch() -> None:
    logits, targets = _batch()
    _, expected = _torch_results(logits, targets, OFF)
    lse = forward(logits, targets, OFF, LAUNCH)["lse"]
    gradient = backward(logits.copy(), targets, lse, Upstream(np.ones(len(logits), np.float32)), OFF, LAUNCH)
    np.testing.assert_array_equal(_classes(gradient), _classes(expected))


OPTIONS = {
    "off": OFF,
    "all": ExtendedLoss(np.linspace(0.5, 1.5, 8, dtype=np.float32), 2, 0.1, 4.0, 1e-2),
    "weights": ExtendedLoss(np.linspace(0.5, 1.5, 8, dtype=np.float32)),
    "softcap": ExtendedLoss(logit_softcap=3.0),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("is_probable", [False, True])
def test_values_and_gradients_are_those_of_torch(is_probable: bool, name: str) -> None:
    """A second opinion on the mathematics, as exact as float32 on both sides."""
    import torch

    logits, targets = normal_batch(12, 8)
    options = OPTIONS[name]
    inputs: Any = torch.softmax(torch.from_numpy(logits[::-1].copy()), 1).numpy() if is_probable else targets
    expected_loss, expected_gradient = _torch_results(logits, inputs, options)
    results = forward(logits, inputs, options, LAUNCH)
    np.testing.assert_allclose(results["loss"], expected_loss, rtol=1e-5, atol=1e-6)
    gradient = backward(logits.copy(), inputs, results["lse"], Upstream(np.ones(12, np.float32)), options, LAUNCH)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("special", ["zero probability at -inf", "probability at -inf"])
def test_probabilities_at_minus_infinity_count_as_in_torch(special: str, smoothing: float) -> None:
    logits, _ = normal_batch(3, 8)
    y = np.full((3, 8), 0.125, np.float32)
    logits[1, 5] = -INF
    y[1, 5] = 0.0 if special.startswith("zero") else 0.125
    options = ExtendedLoss(label_smoothing=smoothing)
    expected, _ = _torch_results(logits, y, options)
    result = forward(logits, y, options, LAUNCH)["loss"]
    np.testing.assert_array_equal(_classes(result), _classes(expected))
    assert not np.isfinite(result[1]) and np.isfinite(result[[0, 2]]).all()


@pytest.mark.parametrize("ignore_index", [-100, 0, 5, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_ignored_positions_are_exact_zeros(dtype: Any, name: str, ignore_index: int) -> None:
    """Whatever number says so, a class or none; with it, neighbours keep their values."""
    logits, targets = normal_batch(21, 8)
    targets[targets == ignore_index] = 1
    targets[[0, 4, 5, 20]] = ignore_index
    ignored = targets == ignore_index
    values = OPTIONS[name]
    options = ExtendedLoss(
        values.class_weight, ignore_index, values.label_smoothing, values.logit_softcap, values.lse_square_scale
    )
    launch = Launch(dtype, 2, 4, 3)
    results = check_forward(logits, targets, options, launch)
    for result in ("loss", "target_logit", "position_weight"):
        assert (results[result][ignored] == 0.0).all() and (results[result][~ignored] != 0.0).all(), result
    upstream = Upstream(np.full(21, NAN, np.float32), None, np.full(21, INF, np.float32))
    upstream.loss[~ignored], upstream.logprob[~ignored] = 2.0, 0.5  # type: ignore[index]
    gradient = check_backward(logits, targets, results["lse"], upstream, options, launch)
    assert (gradient[ignored] == 0.0).all() and (gradient[~ignored] != 0.0).any(axis=1).all()


def test_ignored_positions_keep_the_gradient_of_their_lse() -> None:
    logits, targets = normal_batch(9, 8)
    targets[3] = -100
    lse = check_forward(logits, targets, OFF, LAUNCH)["lse"]
    upstream = Upstream(np.ones(9, np.float32), np.full(9, 0.5, np.float32))
    gradient = check_backward(logits, targets, lse, upstream, OFF, LAUNCH)
    np.testing.assert_allclose(gradient[3], 0.5 * np.exp(logits[3] - lse[3]), rtol=1e-5)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("name", OPTIONS)
def test_ignored_positions_do_not_look_at_their_logits(name: str, value: float) -> None:
    logits, targets = normal_batch(9, 8)
    values = OPTIONS[name]
    options = ExtendedLoss(
        values.class_weight, -100, values.label_smoothing, values.logit_softcap, values.lse_square_scale
    )
    ordinary = forward(logits, targets, options, LAUNCH)
    logits[4], targets[4] = value, -100
    actual = forward(logits, targets, options, LAUNCH)
    others = np.delete(np.arange(9), 4)
    for result in ("loss", "target_logit", "position_weight"):
        assert actual[result][4] == 0.0
        np.testing.assert_array_equal(actual[result][others], ordinary[result][others])


def test_masked_logits_stay_masked_under_a_cap() -> None:
    """The cap alone would make a finite number of -inf."""
    logits, targets = normal_batch(9, 8)
    logits[:, 6], targets[targets == 6] = -INF, 0
    logits[2, 1], logits[3, 1], logits[4, 1] = 3e38, -3e38, INF
    options = ExtendedLoss(logit_softcap=5.0)
    results = check_forward(logits, targets, options, LAUNCH, with_argmax=True, with_entropy=True)
    assert np.isfinite(results["loss"]).all() and np.isfinite(results["entropy"]).all()
    gradient = check_backward(logits, targets, results["lse"], Upstream(np.ones(9, np.float32)), options, LAUNCH)
    assert (gradient[:, 6] == 0.0).all()


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("softcap", [None, 1.0])
def test_the_first_of_equal_maxima_is_the_argmax(softcap: float | None, chunk_size: int) -> None:
    """Also where a cap would make equals of what is not."""
    logits = np.zeros((6, 20), np.float32)
    logits[1, [7, 11]] = 5.0
    logits[2] = -INF
    logits[3] = -3e38
    logits[3, :4] = -INF
    logits[4, 5], logits[4, 13] = 1000.0, 1001.0
    logits[5, [18, 19]] = INF
    targets = np.zeros(6, np.int32)
    options = ExtendedLoss(logit_softcap=softcap)
    launch = Launch(FP32, 1, 6, chunk_size)
    result = forward(logits, targets, options, launch, with_argmax=True)["argmax"]
    np.testing.assert_array_equal(result, [0, 7, 0, 4, 13, 18])


def test_a_row_with_a_nan_has_no_argmax() -> None:
    logits, targets = normal_batch(4, 20)
    logits[1, 2], logits[3, 19] = NAN, NAN
    result = forward(logits, targets, OFF, Launch(FP32, 1, 4, 3), with_argmax=True)["argmax"]
    np.testing.assert_array_equal(result[[1, 3]], [20, 20])
    np.testing.assert_array_equal(result[[0, 2]], logits[[0, 2]].argmax(axis=1))


def test_log_probabilities_are_never_positive() -> None:
    logits, targets = normal_batch(64, 50, spread=30.0)
    targets[:] = logits.argmax(axis=1)
    for softcap in (None, 3.0, 50.0):
        for dtype in (BF16, FP32):
            options = ExtendedLoss(logit_softcap=softcap)
            results = forward(logits, targets, options, Launch(dtype, 2, 32, 20), with_entropy=True)
            assert (results["target_logit"] <= results["lse"]).all() and (results["loss"] >= 0.0).all()
            assert (results["entropy"] >= 0.0).all()
