# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a loss of elements is, as one row of data, and what follows from it. For host code.

A row says what nothing else does: names, kernels, the formula in words, errors, modelled times, and the forms that are
checked. Tensors, gradients and options are read off the signatures of the kernels, promises and bounds are made here.
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
from nkilib.experimental.loss.skeletons.elementwise.host.work import backward_work, forward_backward_work, forward_work
from nkilib.experimental.loss.skeletons.elementwise.kind import INPUT, TARGET

# Arguments of every kernel.
_OF_EVERY_LOSS: Final = ("reduction", "dtype", "columns", "buffers")
_SHAPE: Final = (4096, 32128)
_RUNS: Final = (
    "sums: runs of 512 elements, of 16-bit tensors of 2,048, in the order of the engine's accumulator, then 32 at a "
    "time; the tiling depends on shape and types alone"
)
NUMBERS: Final = {INPUT: Sample.NUMBERS, TARGET: Sample.NUMBERS}
"""Tensors of most losses."""


@dataclass(frozen=True)
class GradientError:
    """How far a gradient may be off.

    Attributes:
        bound: in words, with every activation function rounded correctly.
        functions: by activation function, what each u adds that it is further off, in u of what it is a factor of.
        notes: what else there is to know.
    """

    bound: str
    functions: Mapping[str, float] = field(default_factory=dict)
    notes: str = "gradients of other tensors are computed on request"

    def __str__(self) -> str:
        """``"4 u of the gradient, 2 u more for each further u of log; u = 2^-23; and half a ulp"``."""
        further = "".join(f", {each:g} u more for each further u of {name}" for name, each in self.functions.items())
        return f"{self.bound}{further}; u = 2^-23; and half a ulp"


@dataclass(frozen=True)
class Functions:
    """Activation functions an element that a kernel needs, whatever its instructions.

    Attributes:
        forward: of the losses.
        backward: of the gradients.
        flags: arguments of the backward, which needs its functions only where one of them is set; none: always.
        needed: names of the tensors that the gradients by some tensors are made of; None: all.
    """

    forward: int = 1
    backward: int = 0
    flags: tuple[str, ...] = ()
    needed: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class ElementwiseLoss(SizedLoss):
    """A loss of elements.

    Attributes:
        both: the kernel that gives losses and gradients in one launch; None: there is none.
        forms: that are checked.
    """

    both: Callable[..., Any] | None = None
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
    held: tuple[tuple[float, float], tuple[float, float]],
    forms: tuple[Form, ...] = (),
    further_launches: tuple[ModelledLaunch, ...] = (),
    both: Callable[..., Any] | None = None,
    edges: str = "",
    differences: str = "",
    notes: str = "",
) -> ElementwiseLoss:
    """The row of a loss, whose kernels it makes launchable.

    Args:
        name, module, formula, derivative, edges, differences: as :class:`nkilib.core.host.loss.Loss` has them.
        forward, backward, both: the kernel functions.
        errors: bounds on the error of the losses, one for each form.
        gradient_error: the same of the gradients.
        functions: what the kernels need.
        held: times over the bound that forward and backward are held to, each in bfloat16 and in float32.
        forms: that are checked by :mod:`nkilib.verify` and the tests of all losses of elements.
        further_launches: whose modelled times the page shows after those of ``held``.
        notes: what else there is to know of the losses.
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
        both=both and _launchable_both(both, promise, gradient_error, functions),
        formula=formula,
        derivative=derivative,
        differentiated=gradients_of(backward),
        options=options_of(forward, _OF_EVERY_LOSS),
        tests=("tests/experimental/loss/skeletons/elementwise", "tests/torch/functions"),
        edges=edges,
        differences=differences,
        launches=(
            launch_of("forward, mean", forward, held[0]),
            launch_of("backward, mean", backward, held[1]),
            *further_launches,
        ),
        size_of=size_of,
        forms=forms,
    )


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """All tensors have one shape, but for the upstream gradient of a mean."""
    return SCALAR if tensor == "grad_loss" else TensorSize(shape)


def launch_of(label: str, kernel: Callable[..., Any], held: tuple[float, float], **options: Any) -> ModelledLaunch:
    """A launch on matrices, without optional tensors, as :func:`nkilib.core.host.sized_loss.sized_launch` has it."""
    return sized_launch(label, kernel, held, size_of, _SHAPE, **options)


def _forward_guarantee(errors: tuple[TermError, ...], notes: str) -> Guarantee:
    return Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error=f"{'; '.join(map(str, errors))}; u = 2^-23; 16 bits half a ulp more",
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


def _launchable_both(
    both: Callable[..., Any], of_losses: Guarantee, gradient_error: GradientError, functions: Functions
) -> Any:
    tensors = [name for name in tensors_of(both) if name != "grad_loss"]
    bounds = "; ".join(map(str, of_losses.term_errors))
    promise = replace(
        of_losses,
        in_place=f"{tensors[0]}_hbm",
        error=f"{bounds}, 16 bits half a ulp more; {gradient_error.bound}, and half a ulp; u = 2^-23",
    )
    return launchable(both, promise, forward_backward_work(*tensors, functions=functions.forward))
