"""``kl_div``: ``torch.nn.functional.kl_div`` on the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nkilib.core.host.reductions import REDUCTIONS
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.layout import stored_order
from nkilib.torch.dispatch.losses import as_computed, check_float_dtype, check_inplace
from nkilib.torch.functions.kl_div.operators import DERIVATIVE, KL_DIV

_BATCHMEAN = "batchmean"


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False, *, inplace: bool = False
) -> Tensor:
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
        inplace: the backward writes the gradient over the memory of ``input``, which is dense, neither broadcast nor
            cast, and not to be used afterwards: an operation whose derivative takes it, as that of a log-softmax does,
            raises.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        input and target promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; ``inplace`` where the kernel would get a copy.
        RuntimeError: shapes or devices do not fit; an integer or complex tensor, as in PyTorch; ``inplace`` of a
            leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    _check(input, target, reduction, log_target)
    checks.check_flag(KL_DIV, "inplace", inplace)
    batch = input.shape[0] if input.dim() > 0 else 1
    shape = broadcast_shape(KL_DIV, {"input": input.shape, "target": target.shape})
    x, t = (as_computed(tensor, reduction).expand(shape) for tensor in (input, target))
    if reduction == "none" and x.dtype != t.dtype:
        promoted = torch.promote_types(x.dtype, t.dtype)
        x, t = x.to(promoted), t.to(promoted)
    if inplace:
        check_inplace(KL_DIV, input, x, input.permute(stored_order(input)))
    kernel_reduction = "sum" if reduction == _BATCHMEAN else reduction
    loss = _loss(x, t, inplace, reduction=kernel_reduction, log_target=log_target)
    return loss / batch if reduction == _BATCHMEAN else loss


def _loss(x: Tensor, t: Tensor, inplace: bool, **options: Any) -> Tensor:
    """Of tensors of one shape, which the kernels get as they lie in memory, and with a dimension."""
    if x.dim() == 0:
        return _loss(x.reshape(1), t.reshape(1), inplace, **options).reshape(())
    order = stored_order(x)
    loss: Tensor = DERIVATIVE.apply(inplace, x.permute(order), t.permute(order), **options)
    if options["reduction"] != "none":
        return loss
    return loss.permute([order.index(dim) for dim in range(len(order))])


def _check(input: Tensor, target: Tensor, reduction: Any, log_target: Any) -> None:
    """Refuse what the kernels cannot compute or PyTorch does not accept, with PyTorch's types of errors."""
    caller = KL_DIV
    tensors = {caller.input: input, "target": target}
    checks.check_tensors(caller, tensors)
    known = (*REDUCTIONS, _BATCHMEAN)
    if reduction not in known:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass one of {', '.join(known)}")
    checks.check_flag(caller, "log_target", log_target)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, input, {"target": target})
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            kind = "Complex" if tensor.is_complex() else "Integral"
            raise RuntimeError(f"{caller}: {kind} inputs not supported, got {name} of {tensor.dtype}; pass floats")
        check_float_dtype(caller, name, tensor)
