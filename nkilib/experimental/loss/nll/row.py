# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Registry entries of the negative log-likelihood loss: the kernels, their guarantees and their work.

The forward reads one element for each position, or all elements if the input is streamed; the backward
writes the gradient once. For host code. The simulator is imported only when a profile asks for the work: on
hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.base.work import Work
from nkilib.core.host.launchable import launchable
from nkilib.core.host.sized_loss import SizedLoss, sized_launch, tensor_bytes
from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.experimental.loss.nll import kernels
from nkilib.experimental.loss.nll.class_tiles import is_streamed
from nkilib.experimental.loss.skeletons.indexed.host.sizes import size_of
from nkilib.experimental.loss.skeletons.indexed.positions import Shape

_INDEX_BYTES = 4


def forward_work(
    input_hbm: Any, targets_hbm: Any, class_weight_hbm: Any, reduction: str, streamed: bool | None, **_: Any
) -> Work:
    """Return the work of ``nll_loss_forward``, whose parameters it takes; a streamed input is read whole."""
    from nkilib.simulator.terms.dtypes import as_dtype

    dtype, shape = as_dtype(input_hbm.dtype), Shape.of(tuple(input_hbm.shape))
    of_position = _INDEX_BYTES + (dtype.itemsize if reduction == "none" else 0)
    if is_streamed(shape, dtype) if streamed is None else streamed:
        of_position += shape.classes * dtype.itemsize
    else:
        of_position += dtype.itemsize + (0 if class_weight_hbm is None else FLOAT32_BYTES)
    return Work(prod(targets_hbm.shape) * of_position, dtype=dtype)


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, class_weight_hbm: Any, **_: Any) -> Work:
    """Return the work of ``nll_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    of_position = _INDEX_BYTES + (0 if class_weight_hbm is None else FLOAT32_BYTES)
    nbytes = tensor_bytes(input_hbm, grad_loss_hbm) + prod(targets_hbm.shape) * of_position
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


nll_loss_forward = launchable(
    kernels.nll_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="each loss: 0 without weights, else half a ulp; sum: u / 2 times the sum of the losses' magnitudes for "
        "each of at most 160 additions, plus up to 1,024 additions for each tile of a streamed input; mean: 2 u more; "
        "u = 2^-23",
        notes="sums: 32 numbers at a time, in an order that depends only on shape and type; for a streamed input, the "
        "positions of a partition are added first, in the order of the engine's accumulator",
    ),
    forward_work,
)
nll_loss_backward = launchable(
    kernels.nll_loss_backward,
    Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="input_hbm",
        error="4 u times the gradient, u = 2^-23, plus the rounding of the gradient",
        notes="the gradient is written once: each core either scatters elements into rows that it has filled with "
        "zeros, or computes the gradient on chip",
    ),
    backward_work,
)

NLL: Final = SizedLoss(
    name="nll_loss",
    module="NLLLoss",
    forward=nll_loss_forward,
    backward=nll_loss_backward,
    formula="-w_t x_t",
    derivative="-w_t at the target, 0 elsewhere",
    differentiated=("input",),
    options=("weight", "ignore_index"),
    tests=("tests/experimental/loss/nll", "tests/torch/functions"),
    edges="without a valid target the mean is NaN and its gradient 0",
    differences="weights may have any floating type and targets any integer type",
    launches=(
        sized_launch(
            "backward, mean",
            kernels.nll_loss_backward,
            (1.1, 1.1),
            size_of,
            (4096, 32128),
            always=("total_weight",),
        ),
    ),
    size_of=size_of,
)
