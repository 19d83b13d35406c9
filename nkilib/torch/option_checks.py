"""The options of the losses that are numbers: Python's or numpy's, in the range of the kernels."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from nkilib.experimental.loss.cross_entropy.validation import OPTION_MAX, SOFTCAP_MIN
from nkilib.torch.caller import CROSS_ENTROPY, Caller
from nkilib.torch.options import LossOptions


def checked_options(
    ignore_index: Any,
    label_smoothing: Any,
    logit_softcap: Any,
    lse_square_scale: Any,
    caller: Caller = CROSS_ENTROPY,
) -> LossOptions:
    """The options as Python numbers.

    Raises:
        TypeError: no number, or no integer for ``ignore_index``.
        ValueError: ``ignore_index`` does not fit 64 bits; another option than ``label_smoothing`` is out of range.
        RuntimeError: ``label_smoothing`` is out of range, as in PyTorch.
    """
    options = LossOptions(
        ignore_index=_integer(caller, ignore_index),
        label_smoothing=_number(caller, "label_smoothing", label_smoothing),
        logit_softcap=None if logit_softcap is None else _number(caller, "logit_softcap", logit_softcap),
        lse_square_scale=_number(caller, "lse_square_scale", lse_square_scale),
    )
    if not 0.0 <= options.label_smoothing <= 1.0:
        raise RuntimeError(f"{caller}: label_smoothing must be between 0.0 and 1.0. Got: {options.label_smoothing}")
    if not 0.0 <= options.lse_square_scale <= OPTION_MAX:
        raise ValueError(
            f"{caller}: lse_square_scale must be a number from 0 to {OPTION_MAX}, got {options.lse_square_scale}"
        )
    if options.logit_softcap is not None and not SOFTCAP_MIN <= options.logit_softcap <= OPTION_MAX:
        raise ValueError(
            f"{caller}: logit_softcap must be a number from {SOFTCAP_MIN} to {OPTION_MAX} or None, got "
            f"{options.logit_softcap}; pass None for no cap"
        )
    return options


def _integer(caller: Caller, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Integral):
        raise TypeError(f"{caller}: argument 'ignore_index' must be int, not {type(value).__name__}")
    index = int(value)
    if not -(2**63) <= index < 2**63:
        raise ValueError(f"{caller}: ignore_index must fit 64 bits, as targets do, got {index}")
    return index


def _number(caller: Caller, name: str, value: Any) -> float:
    if not isinstance(value, int | float | Real):
        raise TypeError(f"{caller}: argument {name!r} must be float, not {type(value).__name__}")
    return float(value)
