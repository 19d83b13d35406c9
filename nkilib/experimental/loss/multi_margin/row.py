# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Registry entries of the margin between a target and the other classes: the kernels, their guarantees and their work.

The input is read once, and the gradient is written once. For host code. The simulator is imported only when a profile
asks for the work: on hardware the kernels do without it.
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
    "a row is summed in chunks, each in the order of the engine's accumulator; how rows and columns are divided "
    "depends on the shape alone"
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
        error="u (|m| + (|x_t| + h) / 2) a term h of p = 1, u = 2^-23, and 2 h times that one of p = 2; u / 2 "
        "of the sum "
        "of a row, with the target's own term, for each of its additions, at most 4,096 a chunk; and half a ulp",
        notes=f"{_SUMS}; the target's own term is computed alike, and subtracted",
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
        error="p = 1: 2 u of the value, u = 2^-23, where no hinge is within its error of 0; p = 2: twice the "
        "errors of the "
        "hinges, times the upstream gradient; at the target the sum of these; plus the rounding of the gradient",
        notes=f"{_SUMS}; the element at the target is written last, by the core that has written its row",
    ),
    backward_work,
)

MULTI_MARGIN: Final = SizedLoss(
    name="multi_margin_loss",
    module="MultiMarginLoss",
    forward=multi_margin_loss_forward,
    backward=multi_margin_loss_backward,
    formula="w_t sum over j != t of relu(x_j - x_t + m)^p / C",
    derivative="w_t p relu(x_j - x_t + m)^(p - 1) / C where positive; minus their sum at the target",
    differentiated=("input",),
    options=("p", "margin", "weight"),
    tests=("tests/experimental/loss/multi_margin", "tests/torch/functions"),
    edges="a hinge of 0 has no gradient; a mean divides by N, whatever the weights are",
    differences="weights and targets of any floating and any integer type; a NaN in a row is one in its loss, "
    "where PyTorch leaves its hinge out; no infinite margin",
    launches=(
        sized_launch("forward, mean", kernels.multi_margin_loss_forward, (1.2, 1.05), size_of, _SHAPE),
        sized_launch("forward, mean, p = 2", kernels.multi_margin_loss_forward, (1.75, 1.05), size_of, _SHAPE, p=2),
        sized_launch("backward, mean", kernels.multi_margin_loss_backward, (1.05, 1.05), size_of, _SHAPE),
    ),
    size_of=size_of,
)
