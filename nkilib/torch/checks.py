"""What the functions refuse, from shapes, types and devices alone: values are never looked at.

For an input that ``torch.nn.functional.cross_entropy`` refuses too, the error has the type that it has there.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from nkilib.core.rows.argmax import ARGMAX_COLUMNS_MAX as ARGMAX_CLASSES_MAX
from nkilib.torch.caller import CROSS_ENTROPY, Caller
from nkilib.torch.devices import check_device
from nkilib.torch.launch import TILE_DTYPES
from nkilib.torch.layout import is_view_as_rows, positions_shape
from nkilib.torch.options import LossOptions

REDUCTIONS: Final = ("mean", "sum", "none")
_INDEX_DTYPES: Final = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
)
_SHARDED: Final = {
    "DTensor": "pass .full_tensor() for the whole tensor, or .to_local() where every rank shall see its own part",
    "ShardedTensor": "gather the tensor first",
    "FlatParameter": "use it inside the forward of its FSDP module, where it is unsharded",
}


def check_arguments(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: LossOptions,
    reduction: str,
    normalizer: Tensor | None,
    class_dim: int,
    caller: Caller = CROSS_ENTROPY,
) -> None:
    """Refuse what the kernels cannot compute or PyTorch does not accept; :func:`check_weight` is apart.

    Raises:
        TypeError: an argument has the wrong Python type, or the input is neither bfloat16 nor float32.
        ValueError: unknown ``reduction`` or ``class_dim``; batch sizes differ; ``normalizer`` does not fit.
        RuntimeError: other shapes do not fit.
        NotImplementedError: an unsupported device, a shard, integer logits, or a derivative in forward mode.
    """
    _check_kinds(caller, input, target, weight, normalizer)
    if reduction not in REDUCTIONS:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass mean, sum or none")
    if type(class_dim) is not int or class_dim not in (1, -1):
        raise ValueError(f"{caller}: class_dim must be 1, as in PyTorch, or -1, got {class_dim!r}; permute the input")
    if not torch.compiler.is_compiling():  # there, the operators themselves refuse tensors of these classes
        for name, tensor in _named(caller, input, target, weight, normalizer).items():
            _check_not_sharded(caller, name, tensor)
        _check_no_tangents(caller, **_named(caller, input, target, weight, normalizer))
    _check_devices(caller, input, target, weight)
    if target.shape == input.shape:
        _check_probabilities(caller, target, options)
    else:
        _check_indices(caller, input, target, class_dim)
    _check_logits_dtype(caller, input)
    _check_normalizer(caller, normalizer, reduction, input.device)


def check_inplace(input: Tensor, class_dim: int, caller: Caller = CROSS_ENTROPY) -> None:
    """Refuse ``inplace=True`` where the gradient cannot be written over the logits.

    Raises:
        RuntimeError: the logits are a leaf that requires grad, or a view of one; torch.compile is at work.
        ValueError: the kernel would work on a copy of the logits.
    """
    if torch.compiler.is_compiling():
        from nkilib.torch.uncompiled import refuse_inplace

        refuse_inplace(str(caller))
    leaf = input if input._base is None else input._base
    if leaf.requires_grad and leaf.is_leaf:
        raise RuntimeError(
            f"{caller}: inplace=True would overwrite a leaf that requires grad, an input of yours that is also to "
            f"receive the gradient, or a view of one; pass the output of a layer, or leave inplace off"
        )
    if not is_view_as_rows(input, class_dim):
        raise ValueError(
            f"{caller}: inplace=True requires contiguous logits with the classes last, got shape {tuple(input.shape)}, "
            f"strides {input.stride()} and class_dim={class_dim}, which take a copy; keep the classes last and pass "
            f"class_dim=-1, and shift or mask the targets instead of slicing the logits"
        )


def _named(caller: Caller, input: Any, target: Any, weight: Any, normalizer: Any) -> dict[str, Any]:
    """The tensors under the names that the caller gives them."""
    return {caller.logits: input, "target": target, "weight": weight, "normalizer": normalizer}


def _check_kinds(caller: Caller, input: Any, target: Any, weight: Any, normalizer: Any) -> None:
    for name, value in _named(caller, input, target, weight, normalizer).items():
        is_optional = name in ("weight", "normalizer")
        if not (isinstance(value, Tensor) or (is_optional and value is None)):
            remedy = f"; pass torch.tensor({value})" if isinstance(value, int | float) else ""
            raise TypeError(f"{caller}: argument {name!r} must be Tensor, not {type(value).__name__}{remedy}")


def _check_not_sharded(caller: Caller, name: str, tensor: Tensor | None) -> None:
    kinds = [kind.__name__ for kind in type(tensor).__mro__ if kind.__module__.startswith("torch.distributed")]
    if getattr(tensor, "_is_flat_param", False):  # FSDP marks a plain parameter
        kinds.append("FlatParameter")
    for kind in kinds:
        if kind in _SHARDED:
            raise NotImplementedError(
                f"{caller}: {name} must be a plain tensor, got a {kind}, of which this rank may hold a part only; "
                f"{_SHARDED[kind]}"
            )


def _check_devices(caller: Caller, input: Tensor, target: Tensor, weight: Tensor | None) -> None:
    check_device(str(caller), input.device)
    for name, tensor in (("target", target), ("weight", weight)):
        if tensor is not None and tensor.device != input.device:
            raise RuntimeError(
                f"{caller}: {name} must be on the device of {caller.logits}, {input.device}, got {tensor.device}; "
                f"move it there"
            )


def _check_probabilities(caller: Caller, target: Tensor, options: LossOptions) -> None:
    if not target.is_floating_point():
        raise RuntimeError(
            f"{caller}: Expected floating point type for target with class probabilities, got {target.dtype}; class "
            f"indices have the shape of {caller.logits} without the classes"
        )
    if options.ignore_index >= 0:
        raise RuntimeError(
            f"{caller}: ignore_index is not supported for floating point target, got {options.ignore_index}; leave it "
            f"out, and give positions that do not count a row of zeros"
        )


def _check_indices(caller: Caller, input: Tensor, target: Tensor, class_dim: int) -> None:
    """In the order of PyTorch, whose error for several faults is that of the first."""
    expected = positions_shape(input, class_dim) if input.dim() else ()
    fits = target.shape == expected or (input.dim() == 1 and target.shape == (1,))
    batch, given = (input.shape[0] if input.dim() > 1 else 1), (target.shape[0] if target.dim() else 0)
    if not fits and batch != given and (input.dim() > 1 or target.dim() <= 1):
        raise ValueError(f"{caller}: Expected input batch_size ({batch}) to match target batch_size ({given}).")
    if target.dtype not in _INDEX_DTYPES:
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; class probabilities have "
            f"the shape of {caller.logits}, {tuple(input.shape)}"
        )
    if not fits:
        are_last = class_dim == 1 and target.shape == input.shape[:-1]
        remedy = "; the classes of the logits seem to be last: pass class_dim=-1" if are_last else ""
        raise RuntimeError(f"{caller}: Expected target size {list(expected)}, got {list(target.shape)}{remedy}")


def _check_logits_dtype(caller: Caller, input: Tensor) -> None:
    if input.dtype in TILE_DTYPES:
        return
    if not input.is_floating_point():
        raise NotImplementedError(f"{caller}: not implemented for logits of {input.dtype}; pass bfloat16 or float32")
    half = "train in bfloat16, or " if input.dtype == torch.float16 else ""
    raise TypeError(
        f"{caller}: the kernels take logits in bfloat16 or float32, got {input.dtype}; {half}pass "
        f"{caller.logits}.float()"
    )


def check_weight(weight: Tensor | None, classes: int, soft: bool, caller: Caller = CROSS_ENTROPY) -> None:
    """Refuse class weights that do not fit.

    Args:
        weight: of the caller's arguments.
        classes: V.
        soft: targets are class probabilities.
        caller: who is named in errors.

    Raises:
        RuntimeError: another shape than [classes]; not floating; requires grad and the targets are class indices.
    """
    if weight is None:
        return
    if weight.shape != (classes,):
        raise RuntimeError(
            f"{caller}: weight tensor should be defined either for all {classes} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)}"
        )
    if not weight.is_floating_point():
        raise RuntimeError(f"{caller}: weight must be floating point, but found {weight.dtype}; pass weight.float()")
    if weight.requires_grad and not soft and torch.is_grad_enabled():
        raise RuntimeError(
            f"{caller}: not differentiable with respect to argument 'weight'. This input cannot have requires_grad "
            f"True; pass weight.detach()"
        )


def check_outputs(classes: int, caller: Caller = CROSS_ENTROPY) -> None:
    """Refuse ``return_outputs`` where classes are too many to be counted in float32, as the argmax counts them.

    Raises:
        ValueError: there are more than 2^24.
    """
    if classes > ARGMAX_CLASSES_MAX:
        raise ValueError(
            f"{caller}: return_outputs is for at most {ARGMAX_CLASSES_MAX} classes, got {classes}; leave it off"
        )


def _check_normalizer(caller: Caller, normalizer: Tensor | None, reduction: str, device: torch.device) -> None:
    if normalizer is None:
        return
    if reduction != "mean":
        raise ValueError(
            f"{caller}: normalizer replaces the divisor of a mean, got reduction={reduction!r}; divide the loss "
            f"yourself"
        )
    if normalizer.dim() != 0:
        raise ValueError(
            f"{caller}: normalizer must be a tensor without dimensions, got shape {tuple(normalizer.shape)}; sum it up"
        )
    if normalizer.is_complex():
        raise TypeError(f"{caller}: normalizer must be a real number, got {normalizer.dtype}; pass normalizer.real")
    if normalizer.device not in (device, torch.device("cpu")):
        raise RuntimeError(
            f"{caller}: normalizer must be on the device of {caller.logits}, {device}, or on the CPU, got "
            f"{normalizer.device}; move it there"
        )


def _check_no_tangents(caller: Caller, **tensors: Tensor | None) -> None:
    """Refuse derivatives in forward mode, which the operators do not have: they would be 0."""
    for name, tensor in tensors.items():
        if tensor is not None and unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            raise NotImplementedError(
                f"{caller}: {name} has a tangent, and there are no derivatives in forward mode (jvp, jacfwd) here; use "
                f"backward, or torch.nn.functional.cross_entropy"
            )
