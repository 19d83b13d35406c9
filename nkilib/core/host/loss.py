# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loss of the library, stated as data: its kernels, its PyTorch functions, its formula, its tests.

The registry of all losses (:mod:`nkilib.experimental.loss.registry`) consists of these entries. Pages, commands, checks
and benchmarks follow from them, and a test checks that every entry is complete.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nkilib.core.host.launchable import Launchable
from nkilib.core.host.samples import Sample

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelledLaunch:
    """A launch whose modelled time is shown in docs/reference/losses.md.

    Attributes:
        label: the name of the launch, such as ``"forward, mean"``.
        forward: True for the forward kernel, False for the backward kernel.
        arguments: a function from the name of a type, such as ``"bfloat16"``, to the arguments of the kernel by name:
            specifications of tensors (:func:`nkilib.simulator.spec`) and options.
        bound: the largest accepted ratio of the modelled time to its lower bound, by the name of the type.
        bounded_by: the engines whose time is this lower bound, as profiles name them; None: the engines with the
            largest bound.
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
        forward, backward: the kernels, as ``nki.jit`` returned them; their guarantees are stated with them.
        formula: the loss per element or per row, in plain text, such as ``(x - t)^2``.
        derivative: the derivative of the formula with respect to the input, in plain text.
        differentiated: the argument names of the floating-point inputs that have gradients.
        options: the further arguments of the function.
        tests: the folder or file with the tests of the kernels, and the one with the tests of the PyTorch functions.
        edges: the results at special values, such as infinities; the text says where they are better than PyTorch's.
        differences: the differences from PyTorch, beyond those of all losses.
        launches: the launches whose modelled times are shown in docs/reference/losses.md.
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


@dataclass(frozen=True)
class Form:
    """A loss with certain options and optional tensors, as a check runs it.

    Attributes:
        reference: the float64 reference with the same options, an object of the type that the skeleton of the loss
            (:mod:`nkilib.experimental.loss.skeletons`) expects.
        samples: the distribution of each tensor, by name; optional tensors without an entry are None.
        options: the options of the kernels.
        label: a suffix to the name of the loss that tells this form from the others.
    """

    reference: Any
    samples: Mapping[str, Sample]
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


def tensors_of(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the tensors of a kernel function in order: the names without ``_hbm``, and whether each may be None."""
    return {
        name.removesuffix("_hbm"): str(parameter.annotation).endswith("| None")
        for name, parameter in inspect.signature(function).parameters.items()
        if name.endswith("_hbm")
    }


def gradients_of(backward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the tensors whose gradients a backward kernel computes.

    They are those with an argument ``grad_<name>_wanted`` or, if the kernel has no such argument, the first tensor.
    """
    flags = [name for name in inspect.signature(backward).parameters if name.startswith("grad_")]
    wanted = tuple(name.removeprefix("grad_").removesuffix("_wanted") for name in flags if name.endswith("_wanted"))
    return wanted or tuple(tensors_of(backward))[:1]


def options_of(forward: Callable[..., Any], of_every_loss: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options of a kernel function except those ``of_every_loss``, followed by its optional tensors."""
    names = [name for name in inspect.signature(forward).parameters if not name.endswith("_hbm")]
    optional = [name for name, may_be_none in tensors_of(forward).items() if may_be_none]
    return (*(name for name in names if name not in of_every_loss), *optional)
