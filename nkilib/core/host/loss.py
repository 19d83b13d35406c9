# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a loss of the library is, stated as data: its kernels, its functions of PyTorch, its formula, its tests.

The registry of all losses (:mod:`nkilib.experimental.loss.registry`) is made of these rows. Pages, commands, checks and
benchmarks follow from them, and a test holds that nothing in a row is missing.
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
    """A launch whose modelled time a page shows.

    Attributes:
        label: what is launched, as ``"forward, mean"``.
        forward: of the forward kernel; else of the backward one.
        arguments: from the name of a type, as ``"bfloat16"``, the arguments of the kernel: specifications of tensors
            (:func:`nkilib.simulator.spec`) and options, by name.
        bound: time over the bound that the kernel is held to, by the name of the type.
        held_to: the engines that set this bound, as profiles name them; None: those that set the largest.
    """

    label: str
    forward: bool
    arguments: Callable[[str], dict[str, Any]]
    bound: dict[str, float]
    held_to: str | None = "dma"


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes:
        name: of the function, as in ``torch.nn.functional``; kernels are ``<name>_forward`` and ``<name>_backward``.
        module: the class of ``torch.nn``, and ours.
        forward, backward: the kernels, as ``nki.jit`` returned them; their guarantees are stated with them.
        formula: the loss of an element or a row, in plain text as ``(x - t)^2``.
        derivative: of it by the input.
        differentiated: the floating inputs, by the names of the arguments, that gradients are given of.
        options: further arguments of the function.
        tests: the folder or file of the tests of the kernels; and of the functions of PyTorch.
        edges: where values are special, as PyTorch has it, or better, which is said.
        differences: from PyTorch, beyond those of all losses.
        launches: whose modelled times the page shows.
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
    """A loss with options and optional tensors, as it is checked.

    Attributes:
        truth: in float64, with the same options: what the skeleton of the loss takes as one.
        samples: what its tensors are like, by name; optional tensors that are not named are None.
        options: of the kernels.
        label: what is special, after the name of the loss.
    """

    truth: Any
    samples: Mapping[str, Sample]
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


def tensors_of(function: Callable[..., Any]) -> dict[str, bool]:
    """The tensors of a kernel function by their names without ``_hbm``, in its order: whether each may be None."""
    return {
        name.removesuffix("_hbm"): str(parameter.annotation).endswith("| None")
        for name, parameter in inspect.signature(function).parameters.items()
        if name.endswith("_hbm")
    }


def gradients_of(backward: Callable[..., Any]) -> tuple[str, ...]:
    """The tensors that a kernel function differentiates by: those of its flags, or the first one where it has none."""
    flags = [name for name in inspect.signature(backward).parameters if name.startswith("grad_")]
    wanted = tuple(name.removeprefix("grad_").removesuffix("_wanted") for name in flags if name.endswith("_wanted"))
    return wanted or tuple(tensors_of(backward))[:1]


def options_of(forward: Callable[..., Any], of_every_loss: tuple[str, ...]) -> tuple[str, ...]:
    """Options of a kernel function but for those ``of_every_loss``, and then its optional tensors."""
    names = [name for name in inspect.signature(forward).parameters if not name.endswith("_hbm")]
    optional = [name for name, may_be_none in tensors_of(forward).items() if may_be_none]
    return (*(name for name in names if name not in of_every_loss), *optional)
