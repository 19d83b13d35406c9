"""What the functions refuse, from shapes, types and devices alone: values are never looked at.

For an input that ``torch.nn.functional.cross_entropy`` refuses too, the error has the type that it has there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.torch.devices import check_device
from nkilib.torch.launch import TILE_DTYPES, LossOptions
from nkilib.torch.layout import is_view_as_rows, positions_shape


class Caller(NamedTuple):
    """The function that checks its arguments, as its messages name it.

    Attributes:
        function: its name.
        logits: what it calls the logits.
    """

    function: str = "cross_entropy"
    logits: str = "input"

    def __str__(self) -> str:
        return self.function


CROSS_ENTROPY: Final = Caller()

_REDUCTIONS: Final = ("mean", "sum", "none")
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
        RuntimeError: other shapes do not fit, or an option is out of range.
        NotImplementedError: an unsupported device, a shard, or integer logits.
    """
    _check_kinds(caller, input, target, weight, normalizer, options.ignore_index)
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass mean, sum or none")
    if isinstance(class_dim, bool) or class_dim not in (1, -1):
        raise ValueError(f"{caller}: class_dim must be 1, as in PyTorch, or -1, got {class_dim!r}; permute the input")
    if not torch.compiler.is_compiling():  # there, the operators themselves refuse tensors of these classes
        for name, tensor in ((caller.logits, input), ("target", target), ("weight", weight)):
            _check_not_sharded(caller, name, tensor)
    _check_devices(caller, input, target, weight)
    _check_options(caller, options)
    if target.shape == input.shape:
        _check_probabilities(caller, target, options)
    else:
        _check_indices(caller, input, target, class_dim)
    _check_logits_dtype(caller, input)
    _check_normalizer(caller, normalizer, reduction)


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


def _check_kinds(caller: Caller, input: Any, target: Any, weight: Any, normalizer: Any, ignore_index: Any) -> None:
    required = ((caller.logits, input), ("target", target))
    optional = (("weight", weight), ("normalizer", normalizer))
    for name, value in (*required, *((name, value) for name, value in optional if value is not None)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{caller}: argument {name!r} must be Tensor, not {type(value).__name__}")
    if not isinstance(ignore_index, int) or isinstance(ignore_index, bool):
        raise TypeError(f"{caller}: argument 'ignore_index' must be int, not {type(ignore_index).__name__}")


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


def _check_options(caller: Caller, options: LossOptions) -> None:
    for name in ("label_smoothing", "lse_square_scale", "logit_softcap"):
        value = getattr(options, name)
        if name == "logit_softcap" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{caller}: argument {name!r} must be float, not {type(value).__name__}")
    if not 0.0 <= options.label_smoothing <= 1.0:
        raise RuntimeError(f"{caller}: label_smoothing must be between 0.0 and 1.0. Got: {options.label_smoothing}")
    if not 0.0 <= options.lse_square_scale < float("inf"):
        raise ValueError(f"{caller}: lse_square_scale must be 0 or more and finite, got {options.lse_square_scale}")
    if options.logit_softcap is not None and not 0.0 < options.logit_softcap < float("inf"):
        raise ValueError(
            f"{caller}: logit_softcap must be positive and finite, got {options.logit_softcap}; pass None for no cap"
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
    if target.dtype not in _INDEX_DTYPES:
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; class probabilities have "
            f"the shape of {caller.logits}, {tuple(input.shape)}"
        )
    expected = positions_shape(input, class_dim) if input.dim() else ()
    if target.shape == expected or (input.dim() == 1 and target.shape == (1,)):
        return
    batch, given = (input.shape[0] if input.dim() > 1 else 1), (target.shape[0] if target.dim() else 0)
    if batch != given:
        raise ValueError(f"{caller}: Expected input batch_size ({batch}) to match target batch_size ({given}).")
    raise RuntimeError(f"{caller}: Expected target size {list(expected)}, got {list(target.shape)}")


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
    if weight.requires_grad and not soft:
        raise RuntimeError(
            f"{caller}: not differentiable with respect to argument 'weight'. This input cannot have requires_grad "
            f"True; pass weight.detach()"
        )


def _check_normalizer(caller: Caller, normalizer: Tensor | None, reduction: str) -> None:
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
