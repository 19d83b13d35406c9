"""The reductions that PyTorch's losses have."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from nkilib.torch.dispatch.caller import Caller

REDUCTIONS: Final = ("mean", "sum", "none")


def check_reduction(caller: Caller, reduction: Any) -> None:
    """Refuse another.

    Raises:
        ValueError: always then.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass mean, sum or none")


def reduced(values: Tensor, reduction: str, shape: tuple[int, ...], divisor: Tensor | int | None = None) -> Tensor:
    """The values of rows as ``reduction`` wants them.

    Args:
        values: one for each row.
        reduction: of the caller's arguments.
        shape: of the rows, for ``"none"``.
        divisor: of a mean; None for the number of rows.
    """
    if reduction == "none":
        return values.reshape(shape)
    total = values.sum()
    if reduction == "sum":
        return total
    return total / (values.numel() if divisor is None else divisor)
