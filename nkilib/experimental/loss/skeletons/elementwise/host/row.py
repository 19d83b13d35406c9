# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry entry of an elementwise loss, and the data derived from it. For host code.

An entry states only data found nowhere else: names, kernels, the formula in words, errors, modelled times,
and the forms that are checked. Tensors, gradients and options are read from the signatures of the kernels;
guarantees and bounds are derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nkilib.base.guarantee import Guarantee, TermError
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Form, ModelledLaunch, gradients_of, options_of, tensors_of
from nkilib.core.host.samples import Sample
from nkilib.core.host.sized_loss import SCALAR, SizedLoss, TensorSize, sized_launch
from nkilib.experimental.loss.skeletons.elementwise.definition import INPUT, TARGET
from nkilib.experimental.loss.skeletons.elementwise.host.work import backward_work, forward_backward_work, forward_work

# Arguments of every kernel.
_OF_EVERY_LOSS: Final = ("reduction", "dtype", "columns", "buffers")
_SHAPE: Final = (4096, 32128)
_RUNS: Final = (
    "sums: runs of 512 elements (2,048 for 16-bit tensors) are added in the order of the engine's accumulator, then 32 "
    "numbers at a time; the tiling depends only on shape and types"
)
NUMBERS: Final = {INPUT: Sample.NUMBERS, TARGET: Sample.NUMBERS}
"""Tensors of most losses."""


@dataclass(frozen=True)
class GradientError:
    """The accepted error of a gradient.

    Attributes:
        bound: the bound in words, with every activation function rounded correctly.
        functions: by activation function, the error that each further u of the function's own error adds, in u
            of the quantity that ``bound`` multiplies by u.
        notes: further notes.
    """

    bound: str
    functions: Mapping[str, float] = field(default_factory=dict)
    notes: str = "gradients of the other tensors are computed only on request"

    def __str__(self) -> str:
        """Return the error in words.

        An example is ``"4 u times the gradient; plus 2 u for each further u of log; plus half a ulp; u = 2^-23"``.
        """
        further = "".join(f"; plus {units:g} u for each further u of {name}" for name, units in self.functions.items())
        return f"{self.bound}{further}; plus half a ulp; u = 2^-23"


@dataclass(frozen=True)
class Functions:
    """The numbers of activation functions per element that the kernels of a loss cannot do without.

    Attributes:
        forward: the number for the losses.
        backward: the number for the gradients.
        flags: names of arguments of the backward, which needs its activation functions only if one of them is
            True; empty means always.
        needed: a function that returns, for the names of tensors, the names of those from which their gradients
            are computed; None means that all are needed.
    """

    forward: int = 1
    backward: int = 0
    flags: tuple[str, ...] = ()
    needed: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class ElementwiseLoss(SizedLoss):
    """The registry entry of an elementwise loss.

    Attributes:
        forward_backward: the fused forward-backward kernel, which gives losses and gradients in a single launch; None
            if there is none.
        forms: the forms of the loss, with their options, that are checked.
    """

    forward_backward: Callable[..., Any] | None = None
    forms: tuple[Form, ...] = ()


def elementwise_loss(
    name: str,
    module: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    formula: str,
    derivative: str,
    errors: tuple[TermError, ...],
    gradient_error: GradientError,
    functions: Functions,
    time_limits: tuple[tuple[float, float], tuple[float, float]],
    forms: tuple[Form, ...] = (),
    further_launches: tuple[ModelledLaunch, ...] = (),
    forward_backward: Callable[..., Any] | None = None,
    edges: str = "",
    differences: str = "",
    notes: str = "",
) -> ElementwiseLoss:
    """Return the registry entry of a loss, and make its kernels launchable.

    Args:
        name, module, formula, derivative, edges, differences: see :class:`nkilib.core.host.loss.Loss`.
        forward, backward, forward_backward: the kernel functions; the last one is the fused forward-backward kernel.
        errors: bounds on the error of the losses, one for each form.
        gradient_error: the bound on the error of the gradients.
        functions: the numbers of activation functions that the kernels need.
        time_limits: the largest accepted modelled times of forward and backward, in multiples of the bound,
            each as (in bfloat16, in float32).
        forms: the forms that :mod:`nkilib.verify` and the tests of all elementwise losses check.
        further_launches: further launches, whose modelled times the page of the loss shows after those of
            ``time_limits``.
        notes: further notes on the losses.
    """
    tensors = tensors_of(forward)
    promise = _forward_guarantee(errors, notes)
    return ElementwiseLoss(
        name=name,
        module=module,
        forward=launchable(forward, promise, forward_work(*tensors, functions=functions.forward)),
        backward=launchable(
            backward,
            _backward_guarantee(gradient_error, f"{next(iter(tensors))}_hbm"),
            backward_work(*tensors, needed=functions.needed, functions=functions.backward, flags=functions.flags),
        ),
        forward_backward=forward_backward
        and _launchable_forward_backward(forward_backward, promise, gradient_error, functions),
        formula=formula,
        derivative=derivative,
        differentiated=gradients_of(backward),
        options=options_of(forward, _OF_EVERY_LOSS),
        tests=("tests/experimental/loss/skeletons/elementwise", "tests/torch/functions"),
        edges=edges,
        differences=differences,
        launches=(
            launch_of("forward, mean", forward, time_limits[0]),
            launch_of("backward, mean", backward, time_limits[1]),
            *further_launches,
        ),
        size_of=size_of,
        forms=forms,
    )


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of a tensor of a launch: all have the shape ``shape``, except the upstream gradient, a
    scalar.
    """
    return SCALAR if tensor == "grad_loss" else TensorSize(shape)


def launch_of(
    label: str, kernel: Callable[..., Any], time_limits: tuple[float, float], **options: Any
) -> ModelledLaunch:
    """Return a launch on matrices, without optional tensors; see :func:`nkilib.core.host.sized_loss.sized_launch`."""
    return sized_launch(label, kernel, time_limits, size_of, _SHAPE, **options)


def _forward_guarantee(errors: tuple[TermError, ...], notes: str) -> Guarantee:
    return Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error=f"{'; '.join(map(str, errors))}; plus half a ulp for 16-bit losses; u = 2^-23",
        notes="; ".join(filter(None, (_RUNS, notes))),
        term_errors=errors,
    )


def _backward_guarantee(error: GradientError, in_place: str) -> Guarantee:
    return Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=in_place,
        error=str(error),
        notes=error.notes,
    )


def _launchable_forward_backward(
    forward_backward: Callable[..., Any], of_losses: Guarantee, gradient_error: GradientError, functions: Functions
) -> Any:
    tensors = [name for name in tensors_of(forward_backward) if name != "grad_loss"]
    bounds = "; ".join(map(str, of_losses.term_errors))
    promise = replace(
        of_losses,
        in_place=f"{tensors[0]}_hbm",
        error=f"loss: {bounds}, plus half a ulp for 16-bit losses; gradient: {gradient_error.bound}, plus half a ulp; "
        "u = 2^-23",
    )
    return launchable(forward_backward, promise, forward_backward_work(*tensors, functions=functions.forward))
