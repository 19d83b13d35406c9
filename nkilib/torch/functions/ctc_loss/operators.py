"""The operators ``torch.ops.nkilib.ctc_loss_*``, described, and their derivative.

log_probs [T, N, C], targets [N, S] or None for S = 0, lengths [N], of any integer types. The semantics of PyTorch's
shapes are in :mod:`.functional`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.experimental.loss.ctc import ctc_loss_backward, ctc_loss_forward
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES, kernel_gradient, loss_output
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output, Shape, as_first
from nkilib.torch.dispatch.register import register

CTC_LOSS: Final = Caller("ctc_loss", "log_probs", "log-probabilities", "torch.nn.functional.ctc_loss")


@dataclass(frozen=True)
class CtcOptions:
    """Keywords of the operators, as the kernels have them."""

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False


def _check_lengths(call: Call) -> None:
    """Refuse lengths out of range, as PyTorch does.

    Raises:
        RuntimeError: always then.
    """
    targets = call.tensors["targets"]
    longest = {"input_lengths": call.first.shape[0], "target_lengths": 0 if targets is None else targets.shape[1]}
    for name, most in longest.items():
        least_found, most_found = (int(each) for each in call.tensor(name).aminmax())
        if least_found < 0:
            raise RuntimeError(f"{CTC_LOSS}: Expected {name} to have value at least 0, but got value {least_found}")
        if most_found > most:
            raise RuntimeError(
                f"{CTC_LOSS}: Expected {name} to have value at most {most}, but got value {most_found}; the times, or "
                f"the labels of targets, are no more"
            )


def _integers(call: Call) -> dict[str, Any]:
    targets = call.tensors["targets"]
    return {
        "targets_hbm": None if targets is None else _int32(targets),
        "input_lengths_hbm": _int32(call.tensor("input_lengths")),
        "target_lengths_hbm": _int32(call.tensor("target_lengths")),
    }


def _int32(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.int32).contiguous()


def _each(call: Call) -> Shape:
    return (call.first.shape[1],)


def _alphas(call: Call) -> Shape:
    steps, sequences, _ = call.first.shape
    targets = call.tensors["targets"]
    return steps, sequences, 1 if targets is None else 2 * targets.shape[1] + 1


_LOG_PROBS: Final = Input("log_probs", dtypes=FLOAT_DTYPES, dimensions=3)
_TARGETS: Final = Input("targets", is_optional=True, dimensions=2)
_LENGTHS: Final = (Input("input_lengths", dimensions=1), Input("target_lengths", dimensions=1))

FORWARD: Final = register(
    Operator(
        "ctc_loss_forward",
        inputs=(_LOG_PROBS, _TARGETS, *_LENGTHS),
        options=(CtcOptions,),
        outputs=(
            loss_output(_each, ("log_probs",)),
            Output("nll", shape=_each, depends_on=()),
            Output("alpha", shape=_alphas, depends_on=()),
        ),
        kernel=ctc_loss_forward,
        arguments=_integers,
        check_values=_check_lengths,
        instead=CTC_LOSS.instead,
    )
)

BACKWARD: Final = register(
    Operator(
        "ctc_loss_backward",
        inputs=(_LOG_PROBS, _TARGETS, *_LENGTHS, Input("nll"), Input("alpha"), Input("grad_loss")),
        options=(CtcOptions,),
        outputs=(Output("grad_log_probs", None, as_first),),
        kernel=ctc_loss_backward,
        arguments=lambda call: {**_integers(call), **kernel_gradient(call)},
        instead=CTC_LOSS.instead,
    )
)

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD)
