# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors of calls: their numbers, types and layouts, and the same as arrays of numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.fuzz.draw import Draw

Array = npt.NDArray[Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INDEX_DTYPES = (torch.int64, torch.int32)
_NUMPY = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float16: np.dtype(np.float16)}


def array_of(tensor: Tensor) -> Array:
    """The numbers of a tensor in its own type, copied."""
    dense = tensor.detach().contiguous()
    if dense.dtype == torch.bfloat16:
        return dense.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return dense.numpy().copy()


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The same type for numpy."""
    return _NUMPY.get(dtype, np.dtype(np.float32))


def normal(draw: Draw, *shape: int) -> npt.NDArray[np.float32]:
    """Standard normal numbers."""
    return np.asarray(draw.rng.standard_normal(shape, dtype=np.float32))


def tensor_of(values: Array, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of another type."""
    dense = np.ascontiguousarray(values)  # of one dimension at least
    return torch.from_numpy(dense).reshape(np.shape(values)).to(dtype)


def laid_out(draw: Draw, tensor: Tensor, may_have_gaps: bool = True) -> tuple[Tensor, str]:
    """The same numbers, perhaps with dimensions in another order in memory, or with gaps; and how they lie."""
    kinds = ["contiguous"] * 3 + ["permuted"] * (tensor.dim() > 1) + ["gaps"] * (may_have_gaps and tensor.dim() > 0)
    kind = draw.one_of(kinds)
    if kind == "permuted":
        order = [int(axis) for axis in draw.rng.permutation(tensor.dim())]
        return tensor.permute(order).contiguous().permute([order.index(axis) for axis in range(tensor.dim())]), kind
    if kind == "gaps":
        wide = tensor.new_zeros(*tensor.shape[:-1], tensor.shape[-1] + 3)
        wide[..., : tensor.shape[-1]] = tensor
        return wide[..., : tensor.shape[-1]], kind
    return tensor, kind


def upstream_like(draw: Draw, kind: str, result: Tensor) -> Tensor:
    """An upstream gradient of a result: ones, normal numbers, or these times a power of two."""
    if kind == "ones":
        return torch.ones_like(result)
    scale = {"normal": 1.0, "tiny": 2.0**-16, "huge": 2.0**16}[kind]
    values = scale * normal(draw, *result.shape)
    # Of one number, away from 0, so that there is a gradient to compare.
    values = np.where(np.abs(values) < 0.25 * scale, np.float32(0.5 * scale), values) if result.dim() == 0 else values
    most = float(torch.finfo(result.dtype).max)
    return tensor_of(np.clip(values.astype(np.float32), -most, most), result.dtype)
