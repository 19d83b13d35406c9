# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loss whose row states the sizes of all tensors of a launch, once for whoever makes them.

Pages, profiles and benchmarks launch from there: by shape and options they have the tensors of either kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

from nkilib.core.host.loss import Loss, ModelledLaunch, tensors_of


class TensorSize(NamedTuple):
    """Of a tensor of a launch: its shape, and the name of its type; None: that of the launch."""

    shape: tuple[int, ...]
    dtype: str | None = None


SCALAR: Final = TensorSize((1,), "float32")
"""Of one number, as the upstream gradient of a mean."""

# From the name of a tensor without ``_hbm``, the shape of the first tensor, and options of the kernels where they are
# not the default.
SizeOf = Callable[[str, tuple[int, ...], Mapping[str, Any]], TensorSize]


@dataclass(frozen=True)
class SizedLoss(Loss):
    """A loss that says what its tensors are.

    Attributes:
        size_of: of each tensor of a launch of either kernel with a mean.
    """

    size_of: SizeOf = lambda tensor, shape, options: TensorSize(shape)


def launch_tensors(
    kernel: Callable[..., Any],
    size_of: Callable[[str], TensorSize],
    dtype: Any,
    always: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Specifications of the tensors of a launch, by the names of the parameters; of optional tensors None.

    Args:
        kernel: a kernel, or its function.
        size_of: of a tensor, by its name without ``_hbm``.
        dtype: of those tensors that have the type of the launch.
        always: optional tensors that the launch has.
    """
    # Who reads the registry need not load the simulator.
    from nkilib.simulator import spec

    given: dict[str, Any] = {}
    for tensor, may_be_none in tensors_of(kernel).items():
        given[f"{tensor}_hbm"] = None
        if not may_be_none or tensor in always:
            size = size_of(tensor)
            given[f"{tensor}_hbm"] = spec(size.shape, dtype if size.dtype is None else size.dtype)
    return given


def sized_launch(
    label: str,
    kernel: Callable[..., Any],
    held: tuple[float, float],
    size_of: SizeOf,
    shape: tuple[int, ...],
    *,
    always: tuple[str, ...] = (),
    **options: Any,
) -> ModelledLaunch:
    """A launch in bfloat16 and in float32.

    Args:
        label: what is launched, as ``"forward, mean"``, which begins with the direction.
        kernel: the kernel, or its function.
        held: times over the bound that it is held to, in bfloat16 and in float32.
        size_of: as of :class:`SizedLoss`.
        shape: of the first tensor.
        always: optional tensors that the launch has.
        options: of the kernel.
    """

    def arguments(dtype: str) -> dict[str, Any]:
        tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, shape, options), dtype, always)
        return {**tensors, **options}

    is_forward = label.startswith("forward")
    return ModelledLaunch(label, is_forward, arguments, dict(zip(("bfloat16", "float32"), held, strict=True)))


def tensor_bytes(*tensors: Any) -> int:
    """Bytes of tensors in HBM, none for None. For statements of work, which profiles ask for."""
    from nkilib.simulator.terms.dtypes import as_dtype

    return sum(prod(each.shape) * as_dtype(each.dtype).itemsize for each in tensors if each is not None)
