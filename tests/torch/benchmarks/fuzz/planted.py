# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results of calls that are wrong in the ways that kernels were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
STRIPE: Final = 128


def not_a_number(values: Array) -> Array:
    """One element in the middle."""
    wrong = values.copy()
    wrong.reshape(-1)[wrong.size // 2] = np.nan
    return wrong


def transposed(values: Array) -> Array:
    """The elements in the order of the transposed matrix; of one dimension, from back to front."""
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    wrong = rows[:, ::-1] if min(rows.shape) == 1 else rows.T
    return np.ascontiguousarray(wrong).reshape(values.shape)


WRONG: Final[dict[str, Callable[[Array], Array]]] = {
    "zeros": np.zeros_like,
    "flipped": np.negative,
    "NaN": not_a_number,
    "transposed": transposed,
}


def wrong_rows(values: Array) -> Array:
    """One stripe of 128 rows is that of the rows before."""
    wrong = values.copy()
    wrong[STRIPE : 2 * STRIPE] = values[:STRIPE]
    return wrong


def wrong_columns(values: Array) -> Array:
    """The same of columns."""
    wrong = values.copy()
    wrong[..., STRIPE : 2 * STRIPE] = values[..., :STRIPE]
    return wrong


def missing_rows(values: Array) -> Array:
    """One stripe of 128 rows was never written."""
    wrong = values.copy()
    wrong[STRIPE : 2 * STRIPE] = 0
    return wrong


STRIPES: Final = {"wrong rows": wrong_rows, "wrong columns": wrong_columns, "missing rows": missing_rows}
