# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss, log-sum-exp and gradient against float64, over real vocabularies and hard rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .loss_checks import check_backward, check_forward
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, confident_batch, hard_batch, normal_batch, pair_name

# Vocabulary -> (positions_per_batch, chunk_size): whole, even and ragged chunks; batches whole and ragged (hard_batch
# has 18 rows); tiles that fit SBUF twice and once.
TUNINGS = {
    1: (4, 1),
    2: (32, 1),
    507: (5, 100),
    32000: (9, 32000),
    32128: (32, 8192),
    50257: (4, 32768),
    129280: (16, 32320),
    151936: (7, 49152),
    201088: (128, 10007),
    202408: (18, 32768),
}


def _tuning(vocabulary: int) -> dict[str, int]:
    positions_per_batch, chunk_size = TUNINGS[vocabulary]
    return {"positions_per_batch": positions_per_batch, "chunk_size": chunk_size}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize(
    "vocabulary",
    [size if size < 151936 or size > 201088 else pytest.param(size, marks=pytest.mark.sweep) for size in TUNINGS],
)
def test_hard_rows_stay_within_the_bounds(vocabulary: int, logits_dtype: Any, dtype: Any, cores: int) -> None:
    logits, targets = hard_batch(vocabulary)
    logits = logits.astype(logits_dtype)
    options = {"cores": cores, **_tuning(vocabulary)}
    _, lse = check_forward(logits, targets, dtype, FP32, **options)
    in_place = check_backward(logits, targets, lse, dtype, inplace=True, **options)
    apart = check_backward(logits, targets, lse, dtype, inplace=False, **options)
    narrower = BF16 if BF16 in (logits_dtype, dtype) else FP32
    np.testing.assert_array_equal(in_place.astype(narrower), apart.astype(narrower))


@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("vocabulary", [2, 507, 32000])
def test_lse_of_the_default_type_and_reduction_sum(vocabulary: int, logits_dtype: Any, dtype: Any) -> None:
    """The published defaults: an LSE in ``dtype``; the backward's reference starts from that LSE."""
    logits, targets = hard_batch(vocabulary, seed=1)
    logits = logits.astype(logits_dtype)
    options = {"cores": 2, **_tuning(vocabulary)}
    _, lse = check_forward(logits, targets, dtype, dtype, **options)
    for reduction in ("mean", "sum"):
        check_backward(logits, targets, lse, dtype, reduction=reduction, inplace=False, **options)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.999, 0.99999, 1 - 1e-7])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_confident_targets_stay_within_the_bounds(logits_dtype: Any, dtype: Any, probability: float) -> None:
    logits, targets = confident_batch(40, 32000, probability)
    logits = logits.astype(logits_dtype)
    options = {"cores": 2, "positions_per_batch": 32, "chunk_size": 16000}
    _, lse = check_forward(logits, targets, dtype, FP32, **options)
    check_backward(logits, targets, lse, dtype, reduction="sum", inplace=False, **options)


@pytest.mark.sweep
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("vocabulary", TUNINGS)
def test_many_normal_rows_stay_within_the_bounds(vocabulary: int, logits_dtype: Any, dtype: Any) -> None:
    logits, targets = normal_batch(133, vocabulary, seed=2)
    logits = logits.astype(logits_dtype)
    for positions_per_batch, chunk_size in ((64, 32768), (128, 8192), (33, 49152)):
        options = {"cores": 2, "positions_per_batch": positions_per_batch, "chunk_size": min(chunk_size, vocabulary)}
        _, lse = check_forward(logits, targets, dtype, FP32, **options)
        check_backward(logits, targets, lse, dtype, **options)
