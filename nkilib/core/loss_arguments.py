# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments that the kernels of losses share: checks of types and reductions, and upstream gradients on chip.

NKI code may call everything here. Checks: :func:`require_float_tensor`, :func:`require_reduction` and
:func:`require_upstream`. The upstream gradients of a launch are an :class:`Upstream`; :func:`in_all_partitions` loads
numbers that all partitions need.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkilib.core.host.options import REDUCTIONS
from nkilib.core.rows.checks import FLOATS, require
from nkilib.nki import nisa, nl

# The name of a gradient of each loss among the streamed tensors.
UPSTREAM = "grad_loss"


def require_float_tensor(function: str, name: str, dtype: nl.DType) -> None:
    """Check that the tensor argument ``name`` of a kernel has the type bfloat16, float16 or float32."""
    require(
        dtype in FLOATS,
        f"{function}: {name} must be nl.bfloat16, nl.float16 or nl.float32, got {dtype}; cast it, as with .float()",
    )


def require_reduction(function: str, reduction: str, further: tuple[str, ...] = ()) -> None:
    """Check that a reduction is ``"mean"``, ``"sum"``, ``"none"`` or one of ``further``."""
    known = (*REDUCTIONS, *further)
    require(reduction in known, f"{function}: reduction must be one of {', '.join(known)}, got {reduction}")


def require_upstream(function: str, grad_hbm: nl.NkiTensor, shape: tuple[int, ...], is_each: bool) -> None:
    """Check the upstream gradient of a kernel.

    Args:
        function: the name of the kernel, for messages.
        grad_hbm: the upstream gradient.
        shape: the shape of the losses.
        is_each: whether the gradient must have the shape of the losses; else it must be one float32, for the reduced
            loss.
    """
    if is_each:
        require(
            tuple(grad_hbm.shape) == shape,
            f'{function}: grad_loss_hbm must have the shape of the losses, {shape}, for reduction="none", '
            f"got {tuple(grad_hbm.shape)}; expand it",
        )
        require_float_tensor(function, "grad_loss_hbm.dtype", grad_hbm.dtype)
        return
    require(
        prod(grad_hbm.shape) == 1 and grad_hbm.dtype == nl.float32,
        f"{function}: grad_loss_hbm must be one float32, the gradient of the reduced loss, "
        f"got {grad_hbm.dtype} of shape {tuple(grad_hbm.shape)}; sum it up and cast it",
    )


def in_all_partitions(vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load float32 numbers, one or a vector, from HBM into every partition: a tile [128, numbers]."""
    partitions, numbers = nl.tile_size.pmax, prod(vector_hbm.shape)
    numbers_sbuf = nl.ndarray((partitions, numbers), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=numbers_sbuf, src=vector_hbm.reshape((1, numbers)).broadcast(0, partitions))
    return numbers_sbuf


@dataclass(frozen=True)
class Upstream:
    """The upstream gradients of a launch: one for each loss, or one for the reduced loss.

    Attributes:
        grad_hbm: one float32 number, the gradient of the reduced loss; or one gradient for each loss.
        factor: the factor by which the reduction multiplies the sum of the losses, such as 1 / N for a mean; None if
            each loss has its own gradient.
    """

    grad_hbm: nl.NkiTensor
    factor: float | None

    @property
    def is_of_each(self) -> bool:
        """Whether each loss has its own upstream gradient. The kernel then streams the gradients with the other
        tensors.
        """
        return self.factor is None

    def with_tensors(self, tensors_hbm: dict[str, nl.NkiTensor], names: tuple[str, ...]) -> dict[str, nl.NkiTensor]:
        """Return the tensors that a kernel streams, by name.

        Args:
            tensors_hbm: the tensors of the launch by name.
            names: the tensors to return. The upstream gradients are added if each loss has its own.
        """
        streamed = {name: tensors_hbm[name] for name in names}
        return {**streamed, UPSTREAM: self.grad_hbm} if self.is_of_each else streamed

    def scale(self, factor: float) -> nl.NkiTensor:
        """Return a float32 tile [128, 1] that holds the same number in all partitions: the upstream gradient of the
        reduced loss, times the factor of the reduction, times ``factor``.
        """
        scale_sbuf = in_all_partitions(self.grad_hbm)
        of_sum = 1.0 if self.factor is None else self.factor
        nisa.tensor_scalar(dst=scale_sbuf, data=scale_sbuf, op0=nl.multiply, operand0=factor * of_sum)
        return scale_sbuf
