# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rows with infinities and NaN, of plain and extended kernels: every result is finite, +inf, -inf or NaN exactly where
PyTorch's is; ignored positions and masked logits give zeros where promised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss

from .extended_checks import Launch, Upstream
from .extended_checks import backward as extended_backward
from .extended_checks import check_backward as check_extended_backward
from .extended_checks import check_forward as check_extended_forward
from .extended_checks import forward as extended_forward
from .loss_checks import as_nl, backward, forward
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, Array, normal_batch, pair_name

INF, NAN = np.inf, np.nan

# Eight logits and a target each. With chunks of 3 the special values meet chunk borders, whole chunks and a ragged end.
ROWS: dict[str, tuple[list[float], int]] = {
    "ordinary": ([1, 2, 3, 4, -1, -2, -3, -4], 3),
    "all -inf, first": ([-INF] * 8, 0),
    "all -inf, last": ([-INF] * 8, 7),
    "one NaN": ([1, 2, 3, 4, NAN, -2, -3, -4], 0),
    "NaN at the target": ([1, 2, 3, 4, NAN, -2, -3, -4], 4),
    "NaN first": ([NAN, 2, 3, 4, 5, -2, -3, -4], 1),
    "NaN last": ([1, 2, 3, 4, 5, -2, -3, NAN], 1),
    "all NaN": ([NAN] * 8, 2),
    "NaN and otherwise -inf": ([-INF] * 5 + [NAN] + [-INF] * 2, 5),
    "NaN after +inf": ([1, INF, 3, 4, NAN, -2, -3, -4], 0),
    "+inf after NaN": ([1, NAN, 3, 4, INF, -2, -3, -4], 0),
    "+inf elsewhere": ([1, 2, 3, INF, 5, -2, -3, -4], 0),
    "+inf at the target": ([1, 2, 3, INF, 5, -2, -3, -4], 3),
    "+inf first": ([INF, 2, 3, 4, 5, -2, -3, -4], 5),
    "+inf last": ([1, 2, 3, 4, 5, -2, -3, INF], 5),
    "+inf in two chunks": ([1, INF, 3, 4, INF, -2, -3, -4], 1),
    "all +inf": ([INF] * 8, 6),
    "+inf and otherwise -inf": ([-INF] * 6 + [INF, -INF], 6),
    "+inf, target -inf": ([1, 2, -INF, 4, INF, -2, -3, -4], 2),
    "some -inf": ([1, -INF, 3, -INF, 5, -2, -INF, -4], 0),
    "some -inf, target -inf": ([1, -INF, 3, -INF, 5, -2, -INF, -4], 3),
    "first chunk -inf": ([-INF, -INF, -INF, 4, 5, -2, -3, -4], 7),
    "first chunk -inf, target there": ([-INF, -INF, -INF, 4, 5, -2, -3, -4], 1),
    "middle chunk -inf": ([1, 2, 3, -INF, -INF, -INF, -3, -4], 0),
    "last chunk -inf": ([1, 2, 3, 4, 5, -2, -INF, -INF], 0),
    "only the first finite": ([-5, -INF, -INF, -INF, -INF, -INF, -INF, -INF], 0),
    "only the last finite": ([-INF] * 7 + [-5], 7),
    "only the last finite, target elsewhere": ([-INF] * 7 + [-5], 0),
    "both ends of the range": ([3e38, -3e38, 0, 1, 3e38, -3e38, 2, 3], 1),
    "lowest of the range": ([-3e38] * 8, 4),
    "lowest of the range and -inf": ([-INF] * 4 + [-3e38] * 4, 5),
    "lowest of the range, target -inf": ([-INF] * 4 + [-3e38] * 4, 2),
    "rounds to +inf in bfloat16": ([1, 3.4e38, 3, 4, 5, -2, -3, -4], 0),
    "rounds to -inf in bfloat16": ([1, -3.4e38, 3, 4, 5, -2, -3, -4], 1),
    "+-1e4": ([1e4, -1e4, 1e4, -1e4, 1e4, -1e4, 1e4, -1e4], 1),
}


def _classes(values: Array) -> Array:
    """0 finite, 1 +inf, 2 -inf, 3 NaN."""
    wide = values.astype(np.float64)
    return np.isposinf(wide) + 2 * np.isneginf(wide) + 3 * np.isnan(wide)


def _torch_results(logits: Array, targets: Array, dtype: Any) -> tuple[Array, Array, Array]:
    """PyTorch's float32 loss, log-sum-exp and gradient of the logits rounded to ``dtype``."""
    import torch
    import torch.nn.functional as F

    with np.errstate(over="ignore"):
        rounded = logits.astype(dtype).astype(np.float32)
    x, y = torch.from_numpy(rounded).requires_grad_(), torch.from_numpy(targets).long()
    loss = F.cross_entropy(x, y, reduction="none")
    loss.sum().backward()
    return loss.detach().numpy(), torch.logsumexp(x, dim=1).detach().numpy(), x.grad.numpy()


def _assert_classes(logits: Array, targets: Array, dtype: Any, *, cores: int, **options: Any) -> None:
    expected_loss, expected_lse, expected_gradient = _torch_results(logits, targets, dtype)
    options |= {"cores": cores, "dtype": as_nl(dtype)}
    loss, lse = forward(logits, targets, lse_dtype=as_nl(FP32), **options)
    np.testing.assert_array_equal(_classes(loss), _classes(expected_loss), "loss")
    np.testing.assert_array_equal(_classes(lse), _classes(expected_lse), "lse")
    for inplace in (False, True):
        gradient = backward(logits.copy(), targets, lse, reduction="sum", inplace=inplace, **options)
        np.testing.assert_array_equal(_classes(gradient), _classes(expected_gradient), f"gradient, inplace={inplace}")


def _batch(logits_dtype: Any) -> tuple[Array, Array]:
    with np.errstate(over="ignore"):
        logits = np.array([row for row, _ in ROWS.values()], np.float32).astype(logits_dtype)
    return logits, np.array([target for _, target in ROWS.values()], np.int32)


def test_the_rows_cover_every_class() -> None:
    logits, targets = _batch(FP32)
    loss, lse, gradient = (_classes(values) for values in _torch_results(logits, targets, FP32))
    assert set(loss) == {0, 1, 3} and set(lse) == {0, 1, 2, 3} and set(gradient.ravel()) == {0, 3}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("chunk_size", [1, 3, 4, 8])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_classes_equal_torch(logits_dtype: Any, dtype: Any, chunk_size: int, cores: int) -> None:
    logits, targets = _batch(logits_dtype)
    _assert_classes(logits, targets, dtype, cores=cores, positions_per_batch=16, chunk_size=chunk_size)


@pytest.mark.parametrize("name", ROWS)
def test_classes_of_a_row_alone(name: str) -> None:
    """No row owes its class to its neighbours in a batch."""
    row, target = ROWS[name]
    logits, targets = np.array([row], np.float32), np.array([target], np.int32)
    _assert_classes(logits, targets, FP32, cores=1, positions_per_batch=1, chunk_size=3)


@pytest.mark.parametrize("value", [2.5, INF, -INF, NAN])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_classes_of_a_vocabulary_of_one(dtype: Any, value: float) -> None:
    logits, targets = np.array([[value]], dtype), np.zeros(1, np.int32)
    _assert_classes(logits, targets, dtype, cores=1, positions_per_batch=1, chunk_size=1)


@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_hard_rows_do_not_touch_their_neighbours(logits_dtype: Any, dtype: Any) -> None:
    """An ordinary row between all the hard ones has the very bits that it has alone."""
    logits, targets = _batch(logits_dtype)
    middle = len(logits) // 2
    logits[middle], targets[middle] = logits[0], targets[0]
    options: dict[str, Any] = {"positions_per_batch": 64, "chunk_size": 3, "dtype": as_nl(dtype), "cores": 1}
    loss, lse = forward(logits, targets, **options)
    alone_loss, alone_lse = forward(logits[:1].copy(), targets[:1].copy(), **options)
    gradient = backward(logits, targets, lse, reduction="sum", inplace=False, **options)
    alone = backward(logits[:1].copy(), targets[:1].copy(), alone_lse, reduction="sum", inplace=False, **options)
    assert loss[middle] == alone_loss[0] and lse[middle] == alone_lse[0]
    np.testing.assert_array_equal(gradient[middle], alone[0])


_VALUES = st.sampled_from([0.0, 1.0, -2.0, 1e4, -1e4, 3e38, -3e38, INF, -INF, -INF, NAN])


@st.composite
def _any_batch(draw: st.DrawFn) -> tuple[list[list[float]], list[int], int]:
    vocabulary = draw(st.integers(1, 9))
    rows = draw(st.lists(st.lists(_VALUES, min_size=vocabulary, max_size=vocabulary), min_size=1, max_size=4))
    targets = draw(st.lists(st.integers(0, vocabulary - 1), min_size=len(rows), max_size=len(rows)))
    return rows, targets, draw(st.integers(1, vocabulary))


@given(batch=_any_batch(), dtypes=st.sampled_from(DTYPE_PAIRS), cores=st.sampled_from([1, 2]))
@example(batch=([[-INF, -INF], [INF, INF]], [0, 1], 1), dtypes=(BF16, BF16), cores=2)
def test_classes_of_any_mixture_equal_torch(batch: Any, dtypes: Any, cores: int) -> None:
    rows, targets, chunk_size = batch
    logits_dtype, dtype = dtypes
    _assert_classes(
        np.array(rows, np.float32).astype(logits_dtype),
        np.array(targets, np.int32),
        dtype,
        cores=cores,
        positions_per_batch=2,
        chunk_size=chunk_size,
    )


OFF = ExtendedLoss()
LAUNCH = Launch(FP32, 2, 16, 3)


def _extended_batch() -> tuple[Array, Array]:
    rows = np.array([row for row, _ in ROWS.values()], np.float32)
    return rows, np.array([target for _, target in ROWS.values()], np.int32)


def _extended_torch_results(logits: Array, targets: Array, options: ExtendedLoss) -> tuple[Array, Array]:
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
    logits, targets = _extended_batch()
    options = ExtendedLoss(label_smoothing=smoothing)
    expected, _ = _extended_torch_results(logits, targets, options)
    results = extended_forward(logits, targets, options, Launch(FP32, 2, 16, chunk_size))
    # PyTorch's float32 log-probabilities of the range's ends are finite, and so are ours; their sums may not be.
    within = np.abs(np.where(np.isfinite(logits), logits, 0.0)).max(axis=1) < 1e38
    np.testing.assert_array_equal(_classes(results["loss"])[within], _classes(expected)[within])


def test_gradients_have_the_class_of_torch() -> None:
    logits, targets = _extended_batch()
    _, expected = _extended_torch_results(logits, targets, OFF)
    lse = extended_forward(logits, targets, OFF, LAUNCH)["lse"]
    gradient = extended_backward(logits.copy(), targets, lse, Upstream(np.ones(len(logits), np.float32)), OFF, LAUNCH)
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
    expected_loss, expected_gradient = _extended_torch_results(logits, inputs, options)
    results = extended_forward(logits, inputs, options, LAUNCH)
    np.testing.assert_allclose(results["loss"], expected_loss, rtol=1e-5, atol=1e-6)
    gradient = extended_backward(
        logits.copy(), inputs, results["lse"], Upstream(np.ones(12, np.float32)), options, LAUNCH
    )
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("special", ["zero probability at -inf", "probability at -inf"])
def test_probabilities_at_minus_infinity_count_as_in_torch(special: str, smoothing: float) -> None:
    logits, _ = normal_batch(3, 8)
    y = np.full((3, 8), 0.125, np.float32)
    logits[1, 5] = -INF
    y[1, 5] = 0.0 if special.startswith("zero") else 0.125
    options = ExtendedLoss(label_smoothing=smoothing)
    expected, _ = _extended_torch_results(logits, y, options)
    result = extended_forward(logits, y, options, LAUNCH)["loss"]
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
    results = check_extended_forward(logits, targets, options, launch)
    for result in ("loss", "target_logit", "position_weight"):
        assert (results[result][ignored] == 0.0).all() and (results[result][~ignored] != 0.0).all(), result
    upstream = Upstream(np.full(21, NAN, np.float32), None, np.full(21, INF, np.float32))
    upstream.loss[~ignored], upstream.logprob[~ignored] = 2.0, 0.5  # type: ignore[index]
    gradient = check_extended_backward(logits, targets, results["lse"], upstream, options, launch)
    assert (gradient[ignored] == 0.0).all() and (gradient[~ignored] != 0.0).any(axis=1).all()


def test_ignored_positions_keep_the_gradient_of_their_lse() -> None:
    logits, targets = normal_batch(9, 8)
    targets[3] = -100
    lse = check_extended_forward(logits, targets, OFF, LAUNCH)["lse"]
    upstream = Upstream(np.ones(9, np.float32), np.full(9, 0.5, np.float32))
    gradient = check_extended_backward(logits, targets, lse, upstream, OFF, LAUNCH)
    np.testing.assert_allclose(gradient[3], 0.5 * np.exp(logits[3] - lse[3]), rtol=1e-5)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("name", OPTIONS)
def test_ignored_positions_do_not_look_at_their_logits(name: str, value: float) -> None:
    logits, targets = normal_batch(9, 8)
    values = OPTIONS[name]
    options = ExtendedLoss(
        values.class_weight, -100, values.label_smoothing, values.logit_softcap, values.lse_square_scale
    )
    ordinary = extended_forward(logits, targets, options, LAUNCH)
    logits[4], targets[4] = value, -100
    actual = extended_forward(logits, targets, options, LAUNCH)
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
    results = check_extended_forward(logits, targets, options, LAUNCH, with_argmax=True, with_entropy=True)
    assert np.isfinite(results["loss"]).all() and np.isfinite(results["entropy"]).all()
    gradient = check_extended_backward(
        logits, targets, results["lse"], Upstream(np.ones(9, np.float32)), options, LAUNCH
    )
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
    result = extended_forward(logits, targets, options, launch, with_argmax=True)["argmax"]
    np.testing.assert_array_equal(result, [0, 7, 0, 4, 13, 18])


def test_a_row_with_a_nan_has_no_argmax() -> None:
    logits, targets = normal_batch(4, 20)
    logits[1, 2], logits[3, 19] = NAN, NAN
    result = extended_forward(logits, targets, OFF, Launch(FP32, 1, 4, 3), with_argmax=True)["argmax"]
    np.testing.assert_array_equal(result[[1, 3]], [20, 20])
    np.testing.assert_array_equal(result[[0, 2]], logits[[0, 2]].argmax(axis=1))


def test_log_probabilities_are_never_positive() -> None:
    logits, targets = normal_batch(64, 50, spread=30.0)
    targets[:] = logits.argmax(axis=1)
    for softcap in (None, 3.0, 50.0):
        for dtype in (BF16, FP32):
            options = ExtendedLoss(logit_softcap=softcap)
            results = extended_forward(logits, targets, options, Launch(dtype, 2, 32, 20), with_entropy=True)
            assert (results["target_logit"] <= results["lse"]).all() and (results["loss"] >= 0.0).all()
            assert (results["entropy"] >= 0.0).all()
