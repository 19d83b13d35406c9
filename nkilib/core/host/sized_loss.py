# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loss whose registry entry gives the sizes of all tensors of a launch, in one place for all users.

Pages, profiles and benchmarks make their launches from it: given the shape and the options, it has the tensors of
the forward and of the backward kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

from nkilib.core.host.loss import Loss, ModelledLaunch, tensors_of


class TensorSize(NamedTuple):
    """The shape of a tensor of a launch, and the name of its type; None stands for the type of the launch."""

    shape: tuple[int, ...]
    dtype: str | None = None


SCALAR: Final = TensorSize((1,), "float32")
"""The size of one number, such as the upstream gradient of a mean."""

# A function of the name of a tensor without ``_hbm``, the shape of the first tensor, and the options of the kernels
# that are not the default.
SizeOf = Callable[[str, tuple[int, ...], Mapping[str, Any]], TensorSize]


@dataclass(frozen=True)
class SizedLoss(Loss):
    """A registry entry that gives the sizes of the tensors of a launch.

    Attributes:
        size_of: a function that gives the size of a tensor of a launch with ``reduction="mean"``, for either kernel,
            from the name of the tensor, the shape of the first tensor, and the options.
    """

    size_of: SizeOf = lambda tensor, shape, options: TensorSize(shape)


def launch_tensors(
    kernel: Callable[..., Any],
    size_of: Callable[[str], TensorSize],
    dtype: Any,
    always: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the specifications of the tensors of a launch, by parameter name; None for absent optional tensors.

    Args:
        kernel: a kernel, or its function.
        size_of: a function from the name of a tensor without ``_hbm`` to its size.
        dtype: the type of the launch, for tensors whose size names no type.
        always: the optional tensors that the launch has.
    """
    # Reading the registry must not load the simulator.
    from nkilib.simulator import spec

    tensors: dict[str, Any] = {}
    for tensor, may_be_none in tensors_of(kernel).items():
        tensors[f"{tensor}_hbm"] = None
        if not may_be_none or tensor in always:
            size = size_of(tensor)
            tensors[f"{tensor}_hbm"] = spec(size.shape, dtype if size.dtype is None else size.dtype)
    return tensors


def sized_launch(
    label: str,
    kernel: Callable[..., Any],
    largest_ratios: tuple[float, float],
    size_of: SizeOf,
    shape: tuple[int, ...],
    *,
    always: tuple[str, ...] = (),
    **options: Any,
) -> ModelledLaunch:
    """Make a launch in bfloat16 and in float32.

    Args:
        label: the name of the launch, such as ``"forward, mean"``; it begins with the direction.
        kernel: the kernel, or its function.
        largest_ratios: the largest accepted ratios of the modelled time to its bound, in bfloat16 and in float32.
        size_of: see :class:`SizedLoss`.
        shape: the shape of the first tensor.
        always: the optional tensors that the launch has.
        options: the options of the kernel.
    """

    def arguments(dtype: str) -> dict[str, Any]:
        tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, shape, options), dtype, always)
        return {**tensors, **options}

    is_forward = label.startswith("forward")
    return ModelledLaunch(label, is_forward, arguments, dict(zip(("bfloat16", "float32"), largest_ratios, strict=True)))


def tensor_bytes(*tensors: Any) -> int:
    """Return the total size of tensors in bytes; None counts as 0.

    Used by the functions that state the work of a kernel (:func:`nkilib.base.work.states_work`).
    """
    from nkilib.simulator.terms.dtypes import as_dtype

    return sum(prod(tensor.shape) * as_dtype(tensor.dtype).itemsize for tensor in tensors if tensor is not None)
