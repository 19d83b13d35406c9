# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Options of small launches of the kernels of several target ids."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from nkilib.nki import nl

ROWS: Final = 5
CLASSES: Final = 37
FEATURES: Final = 20


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def ids(count: int) -> np.ndarray:
    """Return `count` ids a row: some ignored, and some equal where there are several."""
    result = np.random.default_rng(21).integers(0, CLASSES, (ROWS, count), dtype=np.int32)
    result[1::2, 0] = -100
    if count > 2:
        result[:, 2] = result[:, 1]
    return result


def gradients(count: int) -> np.ndarray:
    """Return gradients for `count` ids a row."""
    return _numbers(22, ROWS, count)


_BIAS: Final = {"bias_hbm": _numbers(10, CLASSES)}
_CAPPED: Final = {**_BIAS, "logit_softcap": 2.0, "temperature": 0.7, "logit_scale": 0.5}
_COMMON: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "[D, V]": {"weight_layout": "dv", "weight_hbm": _numbers(9, FEATURES, CLASSES)},
    "soft cap, temperature, scale, bias": _CAPPED,
    "temperatures": {**_BIAS, "temperature_hbm": np.linspace(0.5, 2.0, ROWS, dtype=np.float32)},
    "an ignored class": {"ignore_index": int(ids(9)[0, 3])},
    "tiling": {"position_block": 128, "class_block": 128},
    "products in bfloat16": {**_BIAS, "compute_dtype": nl.bfloat16},
    "shard": {"first_class": 20, "num_classes": 20 + CLASSES, "targets_hbm": ids(9) + np.int32(20)},
}
FORWARD: Final = {
    **_COMMON,
    "one id": {"targets_hbm": ids(1)},
    "64 ids": {"targets_hbm": ids(64)},
    "every result": {
        f"with_{name}": True for name in ("target", "argmax", "entropy", "log_sum", "log_sum_squares", "mean_logit")
    },
}
BACKWARD: Final = {
    **_COMMON,
    "one id": {"targets_hbm": ids(1), "grad_logprob_hbm": gradients(1)},
    "64 ids": {"targets_hbm": ids(64), "grad_logprob_hbm": gradients(64)},
    "every gradient": {
        **_BIAS,
        "grad_lse_hbm": _numbers(4, ROWS),
        "entropy_hbm": np.abs(_numbers(7, ROWS)),
        "grad_entropy_hbm": _numbers(8, ROWS),
        "maximum_hbm": _numbers(12, ROWS),
        "log_sum_hbm": np.abs(_numbers(13, ROWS)),
    },
    "gradient of lse alone": {"grad_logprob_hbm": None, "grad_lse_hbm": _numbers(4, ROWS)},
    "input's alone": {"grad_weight_wanted": False},
    "weight's alone": {**_BIAS, "grad_input_wanted": False, "grad_bias_wanted": False},
    "added to a sum": {"grad_weight_sum_hbm": _numbers(11, CLASSES, FEATURES)},
    "input's in float32": {"grad_input_float32": True},
}
