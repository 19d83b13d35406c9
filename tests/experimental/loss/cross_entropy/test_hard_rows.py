# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rows with infinities and NaN: every result is finite, +inf, -inf or NaN exactly where PyTorch's is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from .loss_checks import as_nl, backward, forward
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, Array, pair_name

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
