"""The tiling of flat streams, and what the model says of it."""

from __future__ import annotations

import pytest

from nkilib.experimental.loss import choose_elementwise_tiling, kl_div_backward, kl_div_forward
from nkilib.simulator import profile, spec


@pytest.mark.parametrize("elements", [1, 127, 10**5, 10**7, 10**9])
@pytest.mark.parametrize("nbytes", [2, 4, 6, 12, 20])
def test_tiles_fit_and_are_whole_runs(elements: int, nbytes: int) -> None:
    tiling = choose_elementwise_tiling(elements, nbytes)
    assert tiling.columns % 512 == 0 and 512 <= tiling.columns <= 8192
    assert tiling.buffers * tiling.columns * nbytes <= 112 * 1024


# Times over the bound, modelled for two cores of trn2; the DMA engines set it.
@pytest.mark.parametrize(
    ("log_target", "reduction", "most"),
    [(False, "mean", 1.66), (False, "none", 1.09), (True, "mean", 1.28), (True, "none", 1.02)],
)
def test_modelled_time_of_a_forward(log_target: bool, reduction: str, most: float) -> None:
    x = spec((4096, 32128), "bfloat16")
    found = profile(kl_div_forward[2], x, x, log_target=log_target, reduction=reduction).fraction_of_bound
    assert found is not None and found <= most


@pytest.mark.parametrize("log_target", [False, True])
def test_modelled_time_of_a_backward(log_target: bool) -> None:
    x = spec((4096, 32128), "bfloat16")
    found = profile(kl_div_backward[2], x, x, spec((1,), "float32"), log_target=log_target).fraction_of_bound
    assert found is not None and found <= 1.02
