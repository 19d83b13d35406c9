# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random draws for a call, which depend only on a seed and the number of the call: sizes, choices and tensors.

:class:`Draw` makes them within :class:`Limits`; :func:`laid_out` lays a tensor out in memory, and :func:`upstream_like`
draws an upstream gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, prod
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Choice = TypeVar("Choice")
Array = npt.NDArray[Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INDEX_DTYPES = (torch.int64, torch.int32)
_NUMPY = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float16: np.dtype(np.float16)}
# Where plans change branches: partitions, columns of a PSUM bank, and powers of two, which are added for any range.
_EDGES = (128, 384, 512, 640, 768, 1536, 2560, 5120, 6144, 12288)
_TRIES = 300
# Of products of sizes.
_SPAN = 64


@dataclass(frozen=True)
class Limits:
    """How large a call may be.

    Attributes:
        name: the name of these limits on the command line.
        elements: the elements of the largest tensor.
        products: multiplications of a matrix product.
        logits: the logits of a matrix product whose result no tensor holds.
    """

    name: str
    elements: int
    products: int
    logits: int


MIDDLE = Limits("middle", 3_000_000, 3_000_000_000, 8_000_000)
# For the sample in the tests, whose calls take tenths of a second.
SMALL = Limits("small", 40_000, 15_000_000, 1_000_000)
LIMITS = {case.name: case for case in (MIDDLE, SMALL)}


class Draw:
    """Random choices of one call."""

    def __init__(self, seed: int, number: int, limits: Limits, part: int = 0) -> None:
        self.limits = limits
        self.rng = np.random.default_rng((seed, number, part))

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def one_of(self, choices: Sequence[Choice]) -> Choice:
        """Return one of the choices, each equally likely."""
        return choices[int(self.rng.integers(len(choices)))]

    def uniform(self, least: float, most: float) -> float:
        """A number between two."""
        return float(self.rng.uniform(least, most))

    def size(self, least: int, most: int) -> int:
        """Draw a log-uniform size; half of the sizes are moved to the nearest edge, or one beside it."""
        most = max(least, most)
        drawn = round(exp(self.rng.uniform(log(least), log(most + 0.5))))
        if self.chance(0.5):
            edges = [*_EDGES, *(2**power for power in range(1, 20))]
            nearest = min(edges, key=lambda edge: abs(log(edge / drawn)))
            drawn = nearest + int(self.rng.integers(-1, 2))
        return min(max(drawn, least), most)

    def sizes(self, *ranges: tuple[int, int], most: int | None = None, span: int = _SPAN) -> tuple[int, ...]:
        """Draw a size from each range, with a product of at most ``most``; None for the limit of elements.

        Three of four products are at least ``most / span``: small launches have few branches.
        """
        most = self.limits.elements if most is None else most
        least = most // span if self.chance(0.75) else 1
        best = tuple(low for low, _ in ranges)
        for _ in range(_TRIES):
            drawn = tuple(self.size(*item) for item in ranges)
            if prod(best) < prod(drawn) <= most:
                best = drawn
            if prod(best) >= least:
                break
        return best


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
