"""The row of negative log-likelihood: what it is and what its kernels promise; tests hold each claim.

What the kernels work on: the forward reads an element a position or all, the backward writes the gradient once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.base.work import Work
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Loss, modelled_launch
from nkilib.experimental.loss.nll import kernels
from nkilib.experimental.loss.nll.class_tiles import is_streamed
from nkilib.experimental.loss.skeletons.indexed.positions import Shape

NLL_LOSS_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="0 of a loss without weight, else half a ulp; a sum u / 2 of what is summed for each of at most 160 "
    "additions, and of up to 1,024 for each tile of a streamed input, u = 2^-23; a mean 2 u more",
    notes="sums: 32 numbers at a time, in an order that depends on shape and type alone; of a streamed input first the "
    "positions of a partition in the order of the engine's accumulator",
)
NLL_LOSS_BACKWARD = Guarantee(
    math="float32",
    accumulator="none",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="input_hbm",
    error="4 u of the value, u = 2^-23, plus the rounding of the gradient",
    notes="the gradient is written once; a core scatters into rows whose zeros it has stored, or makes it on chip",
)


_INDEX_BYTES, _FLOAT32_BYTES = 4, 4


def nll_loss_forward_work(
    input_hbm: Any, targets_hbm: Any, class_weight_hbm: Any, reduction: str, streamed: bool | None, **_: Any
) -> Work:
    """The work of ``nll_loss_forward``, whose parameters it takes: of a streamed input, all of it."""
    from nkilib.simulator.terms.dtypes import as_dtype

    element = as_dtype(input_hbm.dtype).itemsize
    shape = Shape.of(tuple(input_hbm.shape))
    of_position = _INDEX_BYTES + (element if reduction == "none" else 0)
    if is_streamed(shape, as_dtype(input_hbm.dtype)) if streamed is None else streamed:
        of_position += shape.classes * element
    else:
        of_position += element + (0 if class_weight_hbm is None else _FLOAT32_BYTES)
    return Work(prod(targets_hbm.shape) * of_position, dtype=as_dtype(input_hbm.dtype))


def nll_loss_backward_work(
    input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, class_weight_hbm: Any, **_: Any
) -> Work:
    """The work of ``nll_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    gradient = prod(input_hbm.shape) * as_dtype(input_hbm.dtype).itemsize
    upstream = prod(grad_loss_hbm.shape) * as_dtype(grad_loss_hbm.dtype).itemsize
    of_position = _INDEX_BYTES + (0 if class_weight_hbm is None else _FLOAT32_BYTES)
    return Work(gradient + upstream + prod(targets_hbm.shape) * of_position, dtype=as_dtype(input_hbm.dtype))


_POSITIONS, _CLASSES = 4096, 32128


nll_loss_forward = launchable(kernels.nll_loss_forward, NLL_LOSS_FORWARD, nll_loss_forward_work)
nll_loss_backward = launchable(kernels.nll_loss_backward, NLL_LOSS_BACKWARD, nll_loss_backward_work)

NLL: Final = Loss(
    name="nll_loss",
    module="NLLLoss",
    forward=nll_loss_forward,
    backward=nll_loss_backward,
    formula="-w_t x_t",
    derivative="-w_t at the target, 0 elsewhere",
    differentiated=("input",),
    options=("weight", "ignore_index"),
    tests=("tests/experimental/loss/nll", "tests/torch/functions"),
    edges="no class that counts: a mean is NaN, and its gradient 0",
    differences="weights and targets of any floating and any integer type",
    launches=(
        modelled_launch(
            "backward, mean",
            False,
            (1.1, 1.1),
            {"input": (_POSITIONS, _CLASSES)},
            {"int32": {"targets": (_POSITIONS,)}, "float32": {"grad_loss": (1,), "total_weight": (1,)}},
        ),
    ),
)
