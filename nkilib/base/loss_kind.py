"""What a loss of the library is, stated as data: its kernels, its functions of PyTorch, its formula, its tests.

The registry of all losses (:mod:`nkilib.experimental.host.loss_kinds`) is made of these rows. Pages are generated from
them, and a test holds that nothing in a row is missing. It imports nothing of this library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
class LossKind:
    """A loss.

    Attributes:
        name: of the function, as in ``torch.nn.functional``; kernels are ``<name>_forward`` and ``<name>_backward``.
        module: the class of ``torch.nn``, and ours.
        forward, backward: the kernels, as ``nki.jit`` returned them; their guarantees are stated with them.
        formula: the loss of an element or a row, in plain text as ``(x - t)^2``.
        derivative: of it by the input.
        differentiated: the floating inputs, by the names of the arguments, that gradients are given of.
        options: further arguments of the function.
        edges: where values are special, as PyTorch has it, or better, which is said.
        differences: from PyTorch, beyond those of all losses.
        launches: whose modelled times the page shows.
        tests: the folder or file of the tests of the kernels; and of the functions of PyTorch.
    """

    name: str
    module: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    formula: str
    derivative: str
    differentiated: tuple[str, ...]
    options: tuple[str, ...]
    tests: tuple[str, ...]
    edges: str = ""
    differences: str = ""
    launches: tuple[ModelledLaunch, ...] = ()
