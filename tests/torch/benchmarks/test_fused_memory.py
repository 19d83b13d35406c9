# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The benchmark of memory with and without ``fuse_linear_loss``, at its small size."""

from __future__ import annotations

from benchmarks.fused_memory import FUSED, LARGEST_SHARE, QUICK_SIZES, STOCK, measure, share


def test_a_fused_step_has_no_logits_in_memory_and_that_of_the_stock_model_has_them_several_times() -> None:
    (sizes,) = QUICK_SIZES
    shares = {kind: share(sizes, measure(sizes, kind)) for kind in (STOCK, FUSED)}
    assert shares[FUSED] <= LARGEST_SHARE and shares[STOCK] >= 2.0
