"""The operators ``torch.ops.nkilib.nll_loss_*``, described, and their derivative.

input [N, C] or [N, C, d1, ...], target [N] or [N, d1, ...] of any integer type. The semantics of PyTorch's shapes are
in :mod:`.functional`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from nkilib.experimental.loss.nll import nll_loss_backward, nll_loss_forward
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES, kernel_gradient, loss_output
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output, Shape, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.functions.cross_entropy.target_indices import check_range, kernel_target

NLL_LOSS: Final = Caller("nll_loss", "input", "log-probabilities", "torch.nn.functional.nll_loss")


@dataclass(frozen=True)
class NllOptions:
    """Keywords of the operators, as the kernels have them."""

    ignore_index: int = -100
    reduction: str = "mean"


def _classes(call: Call) -> int:
    return int(call.first.shape[1])


def _check_classes(call: Call) -> None:
    """Refuse class indices out of range."""
    check_range(str(NLL_LOSS), call.tensor("target").reshape(-1), call.options["ignore_index"], _classes(call))


def _targets(call: Call) -> dict[str, Any]:
    target, ignore_index = kernel_target(call.tensor("target"), call.options["ignore_index"], _classes(call))
    return {"targets_hbm": target.detach(), "ignore_index": ignore_index}


def _as_target(call: Call) -> Shape:
    return tuple(call.tensor("target").shape)


_INPUT: Final = Input("input", dtypes=FLOAT_DTYPES)
_TARGET: Final = Input("target", keyword="targets_hbm")
_CLASS_WEIGHT: Final = Input("class_weight", is_optional=True, dimensions=1)

FORWARD: Final = register(
    Operator(
        "nll_loss_forward",
        inputs=(_INPUT, _TARGET, _CLASS_WEIGHT),
        options=(NllOptions,),
        outputs=(loss_output(_as_target, ("input",)), Output("total_weight", shape=lambda call: (1,))),
        kernel=nll_loss_forward,
        arguments=_targets,
        check_values=_check_classes,
        instead=NLL_LOSS.instead,
    )
)

BACKWARD: Final = register(
    Operator(
        "nll_loss_backward",
        inputs=(_INPUT, _TARGET, Input("grad_loss"), Input("total_weight"), _CLASS_WEIGHT),
        options=(NllOptions,),
        outputs=(Output("grad_input", None, as_first),),
        kernel=nll_loss_backward,
        arguments=lambda call: {**_targets(call), **kernel_gradient(call)},
        may_overwrite=True,
        check_values=_check_classes,
        instead=NLL_LOSS.instead,
    )
)

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD)
