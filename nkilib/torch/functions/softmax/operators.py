"""The operators ``torch.ops.nkilib.softmax_*`` and ``log_softmax_*``, described, and their derivatives.

Tensors of any shape, and an axis. PyTorch's semantics of dimensions, types and layouts are in :mod:`.functional`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from nkilib.experimental import softmax as kernels
from nkilib.nki import nl
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register

SOFTMAX: Final = Caller("softmax", "input", "a tensor", "torch.nn.functional.softmax")
LOG_SOFTMAX: Final = Caller("log_softmax", "input", "a tensor", "torch.nn.functional.log_softmax")
# What the kernels read and write, by the name that an option has for it.
DTYPES: Final = {str(dtype).removeprefix("torch."): dtype for dtype in FLOAT_DTYPES}
_OF_KERNELS: Final = {torch.bfloat16: nl.bfloat16, torch.float16: nl.float16, torch.float32: nl.float32}


@dataclass(frozen=True)
class SoftmaxOptions:
    """Keywords of the operators.

    Attributes:
        axis: along which elements add up to 1; a negative one counts from the end.
        dtype: of the result: ``"bfloat16"``, ``"float16"`` or ``"float32"``; None for that of the first input.
    """

    axis: int = -1
    dtype: str | None = None


def _dtype_of_result(call: Call) -> torch.dtype:
    name = call.group(SoftmaxOptions).dtype
    if name is None:
        return call.first.dtype
    if name not in DTYPES:
        raise ValueError(f"softmax operators: dtype must be one of {', '.join(DTYPES)}, got {name!r}; pass one of them")
    return DTYPES[name]


def _arguments(call: Call) -> dict[str, Any]:
    return {"dtype": _OF_KERNELS[_dtype_of_result(call)]}


def _dtype_of_input(call: Call) -> dict[str, Any]:
    """The gradient has the type of the input, which the backward does not get."""
    return {"dtype": name_of(call.first.dtype)}


def name_of(dtype: torch.dtype) -> str:
    """A type as the option ``dtype`` names it."""
    return str(dtype).removeprefix("torch.")


def _differentiated(caller: Caller, forward: Any, backward: Any) -> Derivative:
    """Both operators of a function, registered with its derivative."""
    of_forward = Operator(
        f"{caller}_forward",
        inputs=(Input("input", keyword="x_hbm", dtypes=FLOAT_DTYPES),),
        options=(SoftmaxOptions,),
        outputs=(Output("output", _dtype_of_result, as_first),),
        kernel=forward,
        arguments=_arguments,
        instead=caller.instead,
    )
    of_backward = Operator(
        f"{caller}_backward",
        inputs=(Input("grad_output", keyword="grad_hbm", dtypes=FLOAT_DTYPES), Input("output", dtypes=FLOAT_DTYPES)),
        options=(SoftmaxOptions,),
        outputs=(Output("grad_input", _dtype_of_result, as_first),),
        kernel=backward,
        arguments=_arguments,
        may_overwrite=True,
        instead=caller.instead,
    )
    return differentiate(register(of_forward), register(of_backward), options=_dtype_of_input)


OF_SOFTMAX: Final = _differentiated(SOFTMAX, kernels.softmax_forward, kernels.softmax_backward)
OF_LOG_SOFTMAX: Final = _differentiated(LOG_SOFTMAX, kernels.log_softmax_forward, kernels.log_softmax_backward)
