"""The row of the margin between a target and other classes: what it is and what its kernels promise.

Tests hold each claim.

What the kernels work on: the input is read once, the gradient is written once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.base.work import Work
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Loss, modelled_launch
from nkilib.experimental.loss.multi_margin import kernels

_SUMS = (
    "a row is summed in chunks, each in the order of the engine's accumulator; how rows and columns are divided "
    "depends on the shape alone"
)

MULTI_MARGIN_LOSS_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="u (|m| + (|x_t| + h) / 2) a term h of p = 1, u = 2^-23, and 2 h times that one of p = 2; u / 2 of the sum "
    "of a row, with the target's own term, for each of its additions, at most 4,096 a chunk; and half a ulp",
    notes=f"{_SUMS}; the target's own term is computed alike, and subtracted",
)
MULTI_MARGIN_LOSS_BACKWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="input_hbm",
    error="p = 1: 2 u of the value, u = 2^-23, where no hinge is within its error of 0; p = 2: twice the errors of the "
    "hinges, times the upstream gradient; at the target the sum of these; plus the rounding of the gradient",
    notes=f"{_SUMS}; the element at the target is written last, by the core that has written its row",
)


def forward_work(input_hbm: Any, targets_hbm: Any, reduction: str, **_: Any) -> Work:
    """The work of ``multi_margin_loss_forward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    losses = prod(targets_hbm.shape) * as_dtype(input_hbm.dtype).itemsize if reduction == "none" else 0
    nbytes = _nbytes(input_hbm) + _nbytes(targets_hbm) + losses
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, **_: Any) -> Work:
    """The work of ``multi_margin_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    nbytes = 2 * _nbytes(input_hbm) + _nbytes(targets_hbm) + _nbytes(grad_loss_hbm)
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


def _nbytes(tensor_hbm: Any) -> int:
    from nkilib.simulator.terms.dtypes import as_dtype

    return int(prod(tensor_hbm.shape) * as_dtype(tensor_hbm.dtype).itemsize)


_ROWS, _CLASSES = 4096, 32128
_SCORES: Final = {"input": (_ROWS, _CLASSES)}
_TARGETS: Final = {"int32": {"targets": (_ROWS,)}}
multi_margin_loss_forward = launchable(kernels.multi_margin_loss_forward, MULTI_MARGIN_LOSS_FORWARD, forward_work)
multi_margin_loss_backward = launchable(kernels.multi_margin_loss_backward, MULTI_MARGIN_LOSS_BACKWARD, backward_work)

MULTI_MARGIN: Final = Loss(
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
        modelled_launch("forward, mean", True, (1.2, 1.05), _SCORES, _TARGETS),
        modelled_launch("forward, mean, p = 2", True, (1.75, 1.05), _SCORES, _TARGETS, p=2),
        modelled_launch("backward, mean", False, (1.05, 1.05), _SCORES, {**_TARGETS, "float32": {"grad_loss": (1,)}}),
    ),
)
