# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Registry entries of the multi-class margin loss: the kernels, their guarantees and their work.

The forward reads the input once; the backward reads it and writes the gradient once. For host code. The
simulator is imported only when a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.base.work import Work
from nkilib.core.host.launchable import launchable
from nkilib.core.host.sized_loss import SizedLoss, sized_launch, tensor_bytes
from nkilib.experimental.loss.multi_margin import kernels
from nkilib.experimental.loss.skeletons.indexed.host.sizes import size_of

_SHAPE: Final = (4096, 32128)
_SUMS = (
    "each row is summed in chunks, each chunk in the order of the engine's accumulator; the division of rows and "
    "columns depends only on the shape"
)


def forward_work(input_hbm: Any, targets_hbm: Any, reduction: str, **_: Any) -> Work:
    """Return the work of ``multi_margin_loss_forward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    dtype = as_dtype(input_hbm.dtype)
    losses = prod(targets_hbm.shape) * dtype.itemsize if reduction == "none" else 0
    return Work(tensor_bytes(input_hbm, targets_hbm) + losses, dtype=dtype)


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, **_: Any) -> Work:
    """Return the work of ``multi_margin_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    nbytes = tensor_bytes(input_hbm, input_hbm, targets_hbm, grad_loss_hbm)
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


multi_margin_loss_forward = launchable(
    kernels.multi_margin_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="each term h: u (|m| + (|x_t| + h) / 2) for p = 1, and 2 h times that for p = 2; the sum of a row, "
        "including the target's own term: u / 2 times the sum for each of its additions, at most 4,096 per chunk; plus "
        "half a ulp; u = 2^-23",
        notes=f"{_SUMS}; the target's own term is computed like the others and then subtracted",
    ),
    forward_work,
)
multi_margin_loss_backward = launchable(
    kernels.multi_margin_loss_backward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="input_hbm",
        error="p = 1: 2 u times the gradient where no hinge is within its error of 0; p = 2: twice the errors of the "
        "hinges times the upstream gradient; at the target: the sum of these errors; plus the rounding of the "
        "gradient; u = 2^-23",
        notes=f"{_SUMS}; the element at the target is written last, by the core that wrote its row",
    ),
    backward_work,
)

MULTI_MARGIN: Final = SizedLoss(
    name="multi_margin_loss",
    module="MultiMarginLoss",
    forward=multi_margin_loss_forward,
    backward=multi_margin_loss_backward,
    formula="w_t sum over j != t of relu(x_j - x_t + m)^p / C",
    derivative="w_t p relu(x_j - x_t + m)^(p - 1) / C where positive; at the target, minus the sum of these",
    differentiated=("input",),
    options=("p", "margin", "weight"),
    tests=("tests/experimental/loss/multi_margin", "tests/torch/functions"),
    edges="a hinge of 0 has gradient 0; the mean divides by N, whatever the weights",
    differences="weights may have any floating type and targets any integer type; a NaN in a row makes its loss NaN, "
    "whereas PyTorch omits its hinge, and so does +inf as the score of the target, whose -inf counts as the largest "
    "finite number; margin and weights must be finite",
    launches=(
        sized_launch("forward, mean", kernels.multi_margin_loss_forward, (1.2, 1.05), size_of, _SHAPE),
        sized_launch("forward, mean, p = 2", kernels.multi_margin_loss_forward, (1.75, 1.05), size_of, _SHAPE, p=2),
        sized_launch("backward, mean", kernels.multi_margin_loss_backward, (1.05, 1.05), size_of, _SHAPE),
    ),
    size_of=size_of,
)
