# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of flat streams, and what the model says of it."""

from __future__ import annotations

import pytest

from nkilib.experimental.loss import choose_elementwise_tiling, kl_div_backward, kl_div_forward
from nkilib.experimental.loss.skeletons.elementwise.run import checked_tiling
from nkilib.nki import nl
from nkilib.simulator import profile, spec


@pytest.mark.parametrize("elements", [1, 127, 10**5, 10**7, 10**9])
@pytest.mark.parametrize("nbytes", [2, 4, 6, 12, 20])
def test_tiles_fit_and_are_whole_runs(elements: int, nbytes: int) -> None:
    tiling = choose_elementwise_tiling(elements, nbytes)
    assert tiling.columns % 512 == 0 and 512 <= tiling.columns <= 8192
    assert tiling.buffers * tiling.columns * nbytes <= 112 * 1024


@pytest.mark.parametrize("dtypes", [[nl.bfloat16] * 3, [nl.float32] * 5, [nl.float32, nl.bfloat16, nl.bfloat16]])
@pytest.mark.parametrize("scratch_tiles", [1, 3, 6, 9, 15])
def test_sums_of_a_thousand_million_elements_have_room(dtypes: list[nl.DType], scratch_tiles: int) -> None:
    """Each tile leaves a sum on chip."""
    nbytes = sum(dtype.itemsize for dtype in dtypes)
    chosen = choose_elementwise_tiling(10**9, nbytes, scratch_tiles)
    assert checked_tiling("loss", 10**9, dtypes, scratch_tiles, None, None) == chosen


@pytest.mark.parametrize("row_columns", [1, 7, 1000, 10**6])
def test_rows_of_a_thousand_million_elements_have_room(row_columns: int) -> None:
    chosen = choose_elementwise_tiling(10**9, 20, 9, row_columns)
    assert checked_tiling("loss", 10**9, [nl.float32] * 5, 9, None, None, row_columns) == chosen


def test_more_than_fits_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"loss: .* bytes of an SBUF partition .* split the tensors"):
        checked_tiling("loss", 10**10, [nl.float32] * 5, 9, None, None)
    with pytest.raises(AssertionError, match=r"loss: 9 buffers of 8192 columns .* pass columns=\d+ and buffers=3"):
        checked_tiling("loss", 10**7, [nl.float32] * 5, 9, 8192, 9)


# Times over the bound, modelled for two cores of trn2; the DMA engines set it.
@pytest.mark.parametrize(
    ("log_target", "reduction", "most"),
    [(False, "mean", 1.05), (False, "none", 1.02), (True, "mean", 1.11), (True, "none", 1.02)],
)
def test_modelled_time_of_a_forward(log_target: bool, reduction: str, most: float) -> None:
    x = spec((4096, 32128), "bfloat16")
    result = profile(kl_div_forward[2], x, x, log_target=log_target, reduction=reduction).fraction_of_bound
    assert result is not None and result <= most


@pytest.mark.parametrize("log_target", [False, True])
def test_modelled_time_of_a_backward(log_target: bool) -> None:
    x = spec((4096, 32128), "bfloat16")
    result = profile(kl_div_backward[2], x, x, spec((1,), "float32"), log_target=log_target).fraction_of_bound
    assert result is not None and result <= 1.02
