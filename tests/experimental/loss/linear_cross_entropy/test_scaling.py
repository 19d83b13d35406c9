"""Gradients times a scalar of the device: values, rounding, and the time that the DMA engines need."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss.linear_cross_entropy.scaling import scale_gradients
from nkilib.nki import nki, nl
from nkilib.simulator import profile, spec

KERNEL = nki.jit(scale_gradients)
SCALE = np.array([-0.3], np.float32)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, np.float16])
@pytest.mark.parametrize("cores", [1, 2])
def test_every_element_is_scaled_and_rounded_once(dtype: type, cores: int) -> None:
    rng = np.random.default_rng(0)
    shapes = (130, 97), (700, 301), (1,)
    gradients = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    for result, gradient in zip(KERNEL[cores](SCALE, *gradients), gradients, strict=True):
        expected = (gradient.astype(np.float32) * SCALE).astype(dtype)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))


def test_gradients_may_be_of_unlike_types_and_left_out() -> None:
    weight, bias = np.ones((300, 40), ml_dtypes.bfloat16), np.arange(300, dtype=np.float32)
    scaled_weight, scaled_bias = KERNEL[2](SCALE, weight, None, bias)
    assert scaled_weight.shape == weight.shape
    np.testing.assert_array_equal(scaled_bias, bias * SCALE)


def test_zero_makes_zeros_and_nan_stays() -> None:
    (zeros,) = KERNEL[2](np.zeros(1, np.float32), np.full((5, 7), 3.0, np.float32))
    assert not zeros.any()
    (kept,) = KERNEL[2](SCALE, np.full((5, 7), np.nan, np.float32))
    assert np.isnan(kept).all()


@pytest.mark.parametrize(
    ("scale", "gradient", "said"),
    [
        (np.ones(2, np.float32), np.ones((2, 2), np.float32), r"scale_hbm must be float32 of shape \(1,\), got"),
        (np.ones(1, np.float16), np.ones((2, 2), np.float32), r"scale_hbm must be float32 of shape \(1,\), got"),
        (SCALE, np.ones((2, 2), np.int32), "gradients must be bfloat16, float32 or float16, got int32"),
    ],
)
def test_what_does_not_fit_is_refused(scale, gradient, said) -> None:
    with pytest.raises(AssertionError, match=said):
        KERNEL[2](scale, gradient)


@pytest.mark.parametrize(("positions", "features", "classes"), [(2048, 2048, 65536), (4096, 4096, 128256)])
def test_the_time_is_that_of_the_bytes(positions: int, features: int, classes: int) -> None:
    """Modelled, not measured: each byte twice at the 2 x 368 GB/s of two cores, and 5% for the first and the last."""
    shapes = [spec((rows, features), nl.bfloat16) for rows in (positions, classes)]
    found = profile(KERNEL[2], spec((1,), nl.float32), *shapes)
    least_us = 4 * (positions + classes) * features / (2 * 368e9) * 1e6
    assert least_us < found.time_us < 1.05 * least_us
