# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Registry entries of the multi-label margin loss: the kernels, their guarantees and their work.

The work is one read of the input and of the targets, though the kernels read the targets twice, and in the
backward one write of the gradient. For host code. The simulator is imported only when a profile asks for the work: on
hardware the kernels do without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.base.work import Work
from nkilib.core.host.launchable import launchable
from nkilib.core.host.sized_loss import SCALAR, SizedLoss, TensorSize, tensor_bytes
from nkilib.experimental.loss.multilabel_margin import kernels
from nkilib.experimental.loss.multilabel_margin.targets import iterations_of


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of a tensor of a launch on scores [N, C]; the targets have the same shape."""
    if tensor == "targets":
        return TensorSize(shape, "int32")
    return TensorSize(shape) if tensor == "input" else SCALAR


def forward_work(input_hbm: Any, targets_hbm: Any, reduction: str, **_: Any) -> Work:
    """Return the work of ``multilabel_margin_loss_forward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    dtype = as_dtype(input_hbm.dtype)
    losses = input_hbm.shape[0] * dtype.itemsize if reduction == "none" else 0
    return Work(tensor_bytes(input_hbm, targets_hbm) + losses, dtype=dtype)


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, **_: Any) -> Work:
    """Return the work of ``multilabel_margin_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    nbytes = tensor_bytes(input_hbm, input_hbm, targets_hbm, grad_loss_hbm)
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


def forward_trips(input_hbm: Any, **_: Any) -> dict[str, int]:
    """Return the largest number of iterations of each loop of the forward: a row has at most as many targets as
    classes.
    """
    most = iterations_of(int(input_hbm.shape[1]))
    return {"find_targets": most, "sum_terms": most}


def backward_trips(input_hbm: Any, **_: Any) -> dict[str, int]:
    """Return the largest number of iterations of each loop of the backward; see :func:`forward_trips`."""
    most = iterations_of(int(input_hbm.shape[1]))
    return {"find_targets": most, "count_terms": most, "give": most}


multilabel_margin_loss_forward = launchable(
    kernels.multilabel_margin_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="each term: u / 2 times |1 - x_t|, plus u / 2 times the term; the sum of a row: u / 2 times the sum for "
        "each of its additions, at most C plus the number of targets; plus half a ulp; u = 2^-23",
        notes="the terms of a target are added in the order of the engine's accumulator, then the sums of a row's "
        "targets",
    ),
    forward_work,
    forward_trips,
)
multilabel_margin_loss_backward = launchable(
    kernels.multilabel_margin_loss_backward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="input_hbm",
        error="u times the gradient where no term is within its error of 0, plus the rounding of the gradient; "
        "u = 2^-23",
        notes="the counts of positive terms are exact, because C is at most 4,096",
    ),
    backward_work,
    backward_trips,
)

MULTILABEL_MARGIN: Final = SizedLoss(
    name="multilabel_margin_loss",
    module="MultiLabelMarginLoss",
    forward=multilabel_margin_loss_forward,
    backward=multilabel_margin_loss_backward,
    formula="sum over targets t and other classes j of relu(1 - x_t + x_j) / C",
    derivative="number of targets with x_t - x_j < 1, over C; at a target, minus the number of such classes, over C",
    differentiated=("input",),
    options=(),
    tests=("tests/experimental/loss/multilabel_margin", "tests/torch/functions"),
    edges="the targets end at the first -1; a target listed twice counts twice",
    differences="at most 4,096 classes; targets may have any integer type; infinite scores count as the largest finite "
    "number; a NaN in a row makes its loss NaN and its gradient 0, whereas PyTorch omits its hinges",
    size_of=size_of,
)
