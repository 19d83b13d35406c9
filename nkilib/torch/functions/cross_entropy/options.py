"""The options of the loss that are numbers: each is a field here, and a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from nkilib.experimental.loss.extended_validation import ARGMAX_CLASSES_MAX, OPTION_MAX, SOFTCAP_MIN

__all__ = ["ARGMAX_CLASSES_MAX", "LossOptions", "RecipeOptions", "check_options"]


@dataclass(frozen=True)
class LossOptions:
    """The options that both kernels take, named as they name them.

    Attributes:
        ignore_index: target of positions that do not count; any integer.
        label_smoothing: share of the target probability that is spread over all classes, 0 to 1.
        logit_softcap: c, from 1e-30 to 1e30, replaces a logit x by c * tanh(x / c), except -inf; None leaves it.
        lse_square_scale: factor of lse^2 in the loss, 0 to 1e30.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    logit_softcap: float | None = None
    lse_square_scale: float = 0.0


class RecipeOptions(TypedDict, total=False):
    """Those of the options that PyTorch's cross-entropy does not have: keywords of all public functions."""

    logit_softcap: float | None
    lse_square_scale: float


def check_options(function: str, options: LossOptions) -> None:
    """What the kernels refuse."""
    if not 0.0 <= options.lse_square_scale <= OPTION_MAX:
        raise AssertionError(
            f"{function}: lse_square_scale must be a number from 0 to {OPTION_MAX}, got {options.lse_square_scale}"
        )
    if options.logit_softcap is not None and not SOFTCAP_MIN <= options.logit_softcap <= OPTION_MAX:
        raise AssertionError(
            f"{function}: logit_softcap must be a number from {SOFTCAP_MIN} to {OPTION_MAX} or None, got "
            f"{options.logit_softcap}; pass None for no cap"
        )
