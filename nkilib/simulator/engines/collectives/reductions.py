# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums, minima and maxima of arrays that several ranks bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...numerics.operators import ARITHMETIC
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import DType, float32, int32, uint32
from ..dma.rows import write

# These are added exactly and wrap; all other types are computed with in float32.
_EXACT = frozenset({int32, uint32})


def store_reduced(core: Core, dst: NkiTensor, key: str, parts: Sequence[npt.NDArray[Any]]) -> None:
    """Reduce the arrays ``parts``, each like ``dst``, from first to last, round once, and store the result."""
    write(core, dst, reduced(key, dst.dtype, parts), computed_in(dst.dtype))


def computed_in(dtype: DType) -> DType:
    """Return the type in which elements of ``dtype`` are reduced."""
    return dtype if dtype in _EXACT else float32


def reduced(key: str, dtype: DType, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the element-wise reduction of the arrays ``parts`` from first to last, not yet rounded to ``dtype``."""
    kind = computed_in(dtype).numpy
    total = np.array(parts[0], kind)
    for part in parts[1:]:
        ARITHMETIC[key](total, part.astype(kind, copy=False), total)
    return total
