"""``kl_div``: ``torch.nn.functional.kl_div`` on the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nkilib.core.host.reductions import REDUCTIONS
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.layout import stored_order
from nkilib.torch.dispatch.losses import as_computed, check_float_dtype
from nkilib.torch.functions.kl_div.operators import DERIVATIVE, KL_DIV

_BATCHMEAN = "batchmean"


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Kullback-Leibler divergence, element by element, on the kernels of :mod:`nkilib.experimental.loss`.

    ``target * (log(target) - input)``, or with ``log_target`` ``exp(target) * (target - input)``. Equals
    ``torch.nn.functional.kl_div(input, target, reduction=reduction, log_target=log_target)``, in float32, and sums are
    float32. No value is looked at, so nothing waits for the device.

    Args:
        input: log-probabilities, bfloat16, float16 or float32, of any shape.
        target: probabilities, or log-probabilities, in one of these types; of a shape that broadcasts with the input's.
            It may require grad.
        reduction: ``"mean"`` (over elements), ``"batchmean"`` (the sum over ``input.size(0)``), ``"sum"`` or
            ``"none"``.
        log_target: the target holds log-probabilities.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        input and target promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``.
        RuntimeError: shapes or devices do not fit; an integer or complex tensor, as in PyTorch.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    _check(input, target, reduction, log_target)
    batch = input.shape[0] if input.dim() > 0 else 1
    shape = torch.broadcast_shapes(input.shape, target.shape)  # type: ignore[no-untyped-call]
    x, t = (as_computed(tensor, reduction).expand(shape) for tensor in (input, target))
    if reduction == "none" and x.dtype != t.dtype:
        promoted = torch.promote_types(x.dtype, t.dtype)
        x, t = x.to(promoted), t.to(promoted)
    order = stored_order(x)
    kernel_reduction = "sum" if reduction == _BATCHMEAN else reduction
    loss: Tensor = DERIVATIVE.apply(
        False, x.permute(order), t.permute(order), log_target=log_target, reduction=kernel_reduction
    )
    if reduction == "none":
        return loss.permute([order.index(dim) for dim in range(len(order))])
    return loss / batch if reduction == _BATCHMEAN else loss


def _check(input: Tensor, target: Tensor, reduction: Any, log_target: Any) -> None:
    """Refuse what the kernels cannot compute or PyTorch does not accept, with PyTorch's types of errors."""
    caller = KL_DIV
    tensors = {caller.input: input, "target": target}
    checks.check_tensors(caller, tensors)
    known = (*REDUCTIONS, _BATCHMEAN)
    if reduction not in known:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass one of {', '.join(known)}")
    if not isinstance(log_target, bool):
        raise TypeError(f"{caller}: argument 'log_target' must be bool, not {type(log_target).__name__}")
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, input, {"target": target})
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            kind = "Complex" if tensor.is_complex() else "Integral"
            raise RuntimeError(f"{caller}: {kind} inputs not supported, got {name} of {tensor.dtype}; pass floats")
        check_float_dtype(caller, name, tensor)
