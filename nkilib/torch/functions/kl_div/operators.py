"""The operators ``torch.ops.nkilib.kl_div_*``, described, and their derivative.

input and target of one shape, any. The semantics of PyTorch's shapes and types are in :mod:`.functional`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nkilib.experimental.loss import kl_div_backward, kl_div_forward
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES, kernel_gradient, loss_output
from nkilib.torch.dispatch.operator import Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register

KL_DIV: Final = Caller("kl_div", "input", "log-probabilities", "torch.nn.functional.kl_div")


@dataclass(frozen=True)
class KlDivOptions:
    """Keywords of the operators, as the kernels have them."""

    log_target: bool = False
    reduction: str = "mean"


@dataclass(frozen=True)
class WantedGradients:
    """Which gradients are asked for. The others are not computed."""

    grad_input_wanted: bool = True
    grad_target_wanted: bool = True


_INPUT: Final = Input("input", dtypes=FLOAT_DTYPES)
_TARGET: Final = Input("target", dtypes=FLOAT_DTYPES)

FORWARD: Final = register(
    Operator(
        "kl_div_forward",
        inputs=(_INPUT, _TARGET),
        options=(KlDivOptions,),
        outputs=(loss_output(as_first, ("input", "target")),),
        kernel=kl_div_forward,
        instead=KL_DIV.instead,
    )
)

_GRADIENTS: Final = (
    Output("grad_input", None, as_first, requested_by="grad_input_wanted"),
    Output("grad_target", lambda call: call.tensor("target").dtype, as_first, requested_by="grad_target_wanted"),
)


BACKWARD: Final = register(
    Operator(
        "kl_div_backward",
        inputs=(_INPUT, _TARGET, Input("grad_loss")),
        options=(KlDivOptions, WantedGradients),
        outputs=_GRADIENTS,
        kernel=kl_div_backward,
        on_request={each.name: each.request for each in _GRADIENTS},
        arguments=kernel_gradient,
        may_overwrite=True,
        instead=KL_DIV.instead,
    )
)

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD)
