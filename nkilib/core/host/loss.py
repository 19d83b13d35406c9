# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The description of a loss of the library as data: its kernels, PyTorch functions, formula and tests.

The registry of all losses (:mod:`nkilib.experimental.loss.registry`) consists of such entries (:class:`Loss`,
:class:`SizedLoss`). Pages, commands, checks and benchmarks are made from the entries, and a test checks that each entry
is complete. :class:`Family` groups losses on pages. :class:`Form` and :class:`Sample` describe what the checks run.
:func:`tensors_of`, :func:`gradients_of` and :func:`kernel_options` read the signatures of kernels. :class:`TensorSize`,
:func:`launch_tensors`, :func:`sized_launch`, :class:`ModelledLaunch` and :func:`tensor_bytes` describe launches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, Final, NamedTuple

from nkilib.core.host.launchable import Launchable

Shape = tuple[int, ...]


class Sample(Enum):
    """The distribution of random numbers from which checks, benchmarks and profiles fill a tensor."""

    NUMBERS = "normal numbers"
    LOGITS = "normal numbers with a standard deviation of 3, and confident ones among them"
    WIDE_LOGITS = "normal numbers with a standard deviation of 6"
    POSITIVE = "numbers from 1/8 on"
    PROBABILITIES = "numbers in (0, 1), 0.999 among them"
    LABELS = "numbers in [0, 1], both ends among them"
    LOG_PROBABILITIES = "logarithms of numbers in (0, 1)"
    SIGNS = "1 and -1"
    SIMILARITIES = "1, -1, and a few numbers that are neither"
    SIMILARITIES_OF_ROWS = "for each row 1, -1 or, of some, 0"
    CLASS_WEIGHTS = "a number from 1/8 on for each class"


class Family(Enum):
    """The purpose of a loss, by which the documentation groups losses.

    A value names the page that lists its losses, such as docs/reference/losses_regression.md; the losses of
    ``VOCABULARY`` are on the page of classification.
    """

    REGRESSION = "regression"
    CLASSIFICATION = "classification"
    VOCABULARY = "vocabulary"
    MARGIN = "margin"
    EMBEDDING = "embedding"
    SEQUENCE = "sequence"


@dataclass(frozen=True)
class ModelledLaunch:
    """A launch whose modelled time is shown in docs/reference/losses_times.md.

    Attributes:
        label: the name of the launch, such as ``"forward, mean"``.
        forward: True for the forward kernel, False for the backward kernel.
        arguments: a function from the name of a type, such as ``"bfloat16"``, to the arguments of the kernel by name:
            specifications of tensors (:func:`nkilib.simulator.spec`) and options.
        bound: the largest accepted ratio of the modelled time to its lower bound, by the name of the type.
        bounded_by: the engines whose time is the lower bound, as profiles name them; None means the engines with the
            largest lower bound.
    """

    label: str
    forward: bool
    arguments: Callable[[str], dict[str, Any]]
    bound: dict[str, float]
    bounded_by: str | None = "dma"


@dataclass(frozen=True)
class Loss:
    """The registry entry of a loss.

    Attributes:
        name: the name of the function, as in ``torch.nn.functional``; the kernels are ``<name>_forward`` and
            ``<name>_backward``.
        module: the class name in ``torch.nn`` and in this library.
        forward, backward: the kernels, as ``nki.jit`` returned them.
        formula: the loss per element or per row, in plain text, such as ``(x - t)^2``.
        derivative: the derivative of the formula with respect to the input, in plain text.
        differentiated: the argument names of the floating-point inputs that have gradients.
        options: the arguments of the function that are not tensors.
        tests: the path of the tests of the kernels, and the path of the tests of the PyTorch functions.
        edges: the results at special values, such as infinities; the text says where they are better than PyTorch's.
        differences: the differences from PyTorch, except those that all losses have.
        launches: the launches whose modelled times are shown in docs/reference/losses_times.md.
        family: the purpose of the loss, which decides the page that lists it.
    """

    name: str
    module: str
    forward: Launchable[..., Any]
    backward: Launchable[..., Any]
    formula: str
    derivative: str
    differentiated: tuple[str, ...]
    options: tuple[str, ...]
    tests: tuple[str, ...]
    edges: str = ""
    differences: str = ""
    launches: tuple[ModelledLaunch, ...] = ()
    family: Family = Family.CLASSIFICATION


@dataclass(frozen=True)
class Form:
    """A loss with certain options and optional tensors: one case that a check runs.

    Attributes:
        reference: the float64 reference with the same options. Its type depends on the shared kernels that the loss
            belongs to (:mod:`nkilib.experimental.loss.skeletons`).
        samples: the distribution of each tensor, by name; optional tensors without an entry are None.
        options: the options of the kernels.
        label: a suffix to the name of the loss that distinguishes this form.
    """

    reference: Any
    samples: Mapping[str, Sample]
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


def tensors_of(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the tensor arguments of a kernel function in order: a mapping from the name without ``_hbm`` to whether
    the argument may be None.
    """
    return {
        name.removesuffix("_hbm"): str(parameter.annotation).endswith("| None")
        for name, parameter in inspect.signature(function).parameters.items()
        if name.endswith("_hbm")
    }


def gradients_of(backward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the tensors whose gradients a backward kernel computes.

    These tensors have an argument ``grad_<name>_wanted``. A kernel without such arguments computes the gradient of its
    first tensor.
    """
    flags = [name for name in inspect.signature(backward).parameters if name.startswith("grad_")]
    wanted = tuple(name.removeprefix("grad_").removesuffix("_wanted") for name in flags if name.endswith("_wanted"))
    return wanted or tuple(tensors_of(backward))[:1]


def kernel_options(forward: Callable[..., Any], of_every_loss: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the options of a kernel function, followed by the names of its optional tensors.

    Args:
        forward: the kernel function.
        of_every_loss: the names of options to leave out, because all losses have them.
    """
    names = [name for name in inspect.signature(forward).parameters if not name.endswith("_hbm")]
    optional = [name for name, may_be_none in tensors_of(forward).items() if may_be_none]
    return (*(name for name in names if name not in of_every_loss), *optional)


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
    """A registry entry that also gives the sizes of the tensors of a launch.

    Pages, profiles and benchmarks make their launches from it.

    Attributes:
        size_of: a function that gives the size of a tensor of a forward or backward launch with ``reduction="mean"``,
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
    """Return the description of one launch in bfloat16 and in float32, for the page of modelled times.

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
    """Return the total size of tensors in bytes; None counts as 0."""
    from nkilib.simulator.terms.dtypes import as_dtype

    return sum(prod(tensor.shape) * as_dtype(tensor.dtype).itemsize for tensor in tensors if tensor is not None)
