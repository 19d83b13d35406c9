# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The argument ``temperature`` of losses of logits: a number, or a tensor with one temperature for each position.

A number is an option of the operators and a constant of the compiled kernel. A tensor is the input :data:`TEMPERATURES`
of the operators, so that other values need no compilation. :func:`number_and_tensor` separates the two,
:func:`temperatures_of_rows` checks the tensor and converts it for the kernels, and :func:`check_temperatures` checks
its values on the CPU. Modules store a number or a tensor by :func:`keep_temperature`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import Input

# [N], or [1] for the same temperature at all positions. At the end of the inputs of an operator, so that graphs that
# were saved without it stay valid.
TEMPERATURES: Final = Input(
    "temperatures", keyword="temperature_hbm", is_optional=True, dimensions=1, dtypes=(torch.float32,)
)
_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


def number_and_tensor(temperature: Any) -> tuple[Any, Tensor | None]:
    """Return the number and the tensor that the operators get for the argument ``temperature``.

    For a tensor they are 1.0 and the tensor; for a number, the number and None.
    """
    return (1.0, temperature) if isinstance(temperature, Tensor) else (temperature, None)


def keep_temperature(module: nn.Module, temperature: Any) -> None:
    """Set the attribute ``temperature`` of a module.

    A tensor becomes a buffer, which moves with the module but is not in the state dict.
    """
    if isinstance(temperature, Tensor):
        module.register_buffer("temperature", temperature, persistent=False)
    else:
        module.temperature = temperature


def check_rows(caller: Caller, temperature: Any, has_all_rows: bool) -> None:
    """Check that there is only one temperature if this rank has only a part of the positions, as with a DTensor.

    A tensor with several temperatures would have to be divided over the ranks like the positions, which is not
    implemented.

    Raises:
        NotImplementedError: there are several temperatures.
    """
    if isinstance(temperature, Tensor) and temperature.numel() > 1 and not has_all_rows:
        raise NotImplementedError(
            f"{caller}: temperature must be a number or of one element beside {caller.input}, a DTensor whose "
            f"positions are spread over ranks, got shape {tuple(temperature.shape)}; pass this rank's positions as "
            f"plain tensors"
        )


def temperatures_of_rows(
    caller: Caller, temperature: Tensor | None, shape: Sequence[int], device: torch.device
) -> Tensor | None:
    """Return the temperatures of the rows, float32 [N], or [1] for one element; None if ``temperature`` is None.

    Args:
        caller: the function that error messages name.
        temperature: the tensor, of one element, or of a shape that broadcasts to ``shape``; or None.
        shape: the shape of the positions.
        device: the device of the function's first argument.

    Raises:
        TypeError: another dtype than float32, bfloat16 or float16.
        RuntimeError: another shape or device; the tensor requires grad.
        NotImplementedError: a sharded tensor; forward-mode differentiation.
    """
    if temperature is None:
        return None
    checks.check_tensors(caller, {"temperature": temperature})
    checks.check_plain(caller, {"temperature": temperature})
    if temperature.device != device:
        raise RuntimeError(
            f"{caller}: temperature must be on the device of {caller.input}, {device}, got {temperature.device}; "
            f"move it there"
        )
    if temperature.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{caller}: temperature must not require grad, since it gets no gradient; pass temperature.detach(), or "
            f"divide the logits by it outside of the function"
        )
    if temperature.dtype not in _DTYPES:
        raise TypeError(
            f"{caller}: temperature must be float32, bfloat16 or float16, got {temperature.dtype}; pass "
            f"temperature.float()"
        )
    numbers = temperature.detach().to(torch.float32)
    if numbers.numel() == 1:
        return numbers.reshape(1)
    if not _broadcasts(numbers.shape, shape):
        raise RuntimeError(
            f"{caller}: temperature must have one element, or a shape that broadcasts to that of the positions, "
            f"{tuple(shape)}, got {tuple(temperature.shape)}; for one of each sample, pass it as [batch, 1]"
        )
    return numbers.expand(shape).reshape(-1).contiguous()


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    missing = len(wanted) - len(shape)
    return missing >= 0 and all(size in (1, of_whole) for size, of_whole in zip(shape, wanted[missing:], strict=True))


def check_temperatures(caller: Caller, temperatures: Tensor | None, least: float, most: float) -> None:
    """Check that all temperatures of a call are in the range of the kernels; None passes.

    The check reads the values, so it is for the CPU. Elsewhere a temperature out of range makes the results of its
    position NaN.

    Raises:
        ValueError: a temperature is out of range.
    """
    if temperatures is None:
        return
    is_outside = ~((temperatures >= least) & (temperatures <= most))  # NaN is in no range
    if bool(is_outside.any()):
        at = int(is_outside.nonzero()[0])
        raise ValueError(
            f"{caller}: temperature must be from {least} to {most} at every position, got {float(temperatures[at])} at "
            f"position {at}; pass 1.0 for none"
        )
