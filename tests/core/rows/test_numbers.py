# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Numeric options are finite numbers within their limits, and are rounded to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.core.rows.numbers import LARGEST, LEAST_ARGUMENT_OF_LOG, LEAST_NORMAL, require_option

UNLIMITED: dict[str, float] = {}
SHARE = {"least": 0.0, "most": 1.0}


@pytest.mark.parametrize(
    ("limits", "value"),
    [
        (UNLIMITED, -LARGEST),
        (UNLIMITED, LARGEST),
        (UNLIMITED, 3),
        (SHARE, 0.0),
        (SHARE, 0.1),
        (SHARE, 1),
        ({"most": 0.5}, 0.5),
        ({"least": LEAST_NORMAL}, LEAST_NORMAL),
    ],
)
def test_a_number_within_the_limits_is_rounded_to_float32(limits: dict[str, float], value: float) -> None:
    result = require_option("f", "tau", value, **limits)
    assert type(result) is float and result == float(np.float32(value))


@pytest.mark.parametrize(
    ("limits", "value", "words"),
    [
        (UNLIMITED, float("nan"), ""),
        (UNLIMITED, float("inf"), ""),
        (UNLIMITED, 2.0 * LARGEST, ""),
        (UNLIMITED, True, ""),
        (UNLIMITED, "1", ""),
        ({"least": 0.0}, -1.0, " of at least 0"),
        ({"least": 0.5}, 0.25, " of at least 0.5"),
        ({"least": LEAST_NORMAL}, 0.0, " of at least 2^-126"),
        ({"least": LEAST_ARGUMENT_OF_LOG}, 0.0, f" of at least {2.0**-64}"),
        ({"most": 2.0}, 2.5, " of at most 2"),
        (SHARE, 1.5, " from 0 to 1"),
        (SHARE, -0.5, " from 0 to 1"),
        (SHARE, float("nan"), " from 0 to 1"),
        ({"least": LEAST_NORMAL, "most": 0.5}, 0.75, " from 2^-126 to 0.5"),
    ],
)
def test_another_one_is_rejected_with_the_limits(limits: dict[str, float], value: Any, words: str) -> None:
    with pytest.raises(AssertionError) as rejected:
        require_option("f", "tau", value, **limits)
    assert str(rejected.value) == f"f: tau must be a finite number of float32{words}, got {value}"
