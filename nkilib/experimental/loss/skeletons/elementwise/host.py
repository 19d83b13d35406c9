# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of an elementwise loss: its registry entry, with guarantees and work, and its float64 results with the
accepted errors.

:func:`elementwise_loss` makes the entry (:class:`ElementwiseLoss`) from the reference of the loss, an
:class:`ElementwiseReference`. :func:`losses`, :func:`reduced` and :func:`gradients` are the results of the kernels in
float64.

An entry is made from data that the kernels' signatures do not show, such as the formula in words, errors and *forms*,
the combinations of options that tests check. Tensors, gradients and options are read from the signatures. The work does
not depend on the tiling: every needed tensor is read once, every result written once in HBM. The simulator is imported
only when a profile asks for the work: the kernels on hardware do not need the simulator.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. The reference of a loss
has the errors of the losses and of their derivatives. This module adds the errors of the steps that follow: sums,
products with upstream gradients, and rounding to another type. Errors are of first order in u.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import Guarantee, TermError, of_each_unit
from nkilib.base.statements import StatesWork, Work
from nkilib.core.cores import LEAF, levels
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.host.error_bounds import (
    SIMULATED,
    SMALLEST_NORMAL,
    UNIT,
    WEIGHT_UNITS,
    Derived,
    Exact,
    Float64Array,
    FunctionErrors,
    Tensors,
    as_float64,
    reduction_factor,
    rounding,
    within_range,
)
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import (
    SCALAR,
    Family,
    Form,
    ModelledLaunch,
    Sample,
    SizedLoss,
    TensorSize,
    gradients_of,
    kernel_options,
    sized_launch,
    tensors_of,
)
from nkilib.experimental.loss.skeletons.elementwise.definition import INPUT, TARGET, WEIGHT
from nkilib.experimental.loss.skeletons.elementwise.tiling import PIECE_COLUMNS, RUN_COLUMNS, SUMS_OF_RUN, run_columns

# Arguments of every kernel.
_OF_EVERY_LOSS: Final = ("reduction", "dtype", "columns", "buffers")
_SHAPE: Final = (4096, 32128)
_RUNS: Final = (
    "sums: runs of 512 elements (2,048 for 16-bit tensors) are added in the order of the engine's accumulator, then 32 "
    "numbers at a time; the tiling depends only on shape and types"
)
NUMBERS: Final = {INPUT: Sample.NUMBERS, TARGET: Sample.NUMBERS}
"""Tensors of most losses."""


def _present_tensors(names: tuple[str, ...], arguments: Mapping[str, Any]) -> list[Any]:
    tensors = [arguments[f"{name}_hbm"] for name in names]
    return [tensor for tensor in tensors if tensor is not None]


def _work(first: Any, read: list[Any], of_each: list[Any], functions: int) -> Work:
    """Return the work of a launch.

    Args:
        first: the tensor whose shape gives the number of elements.
        read: the tensors that are read.
        of_each: the types of further tensors that are read or written, each with as many elements as ``first``.
        functions: the number of activation functions per element.
    """
    from nkilib.simulator.terms.dtypes import as_dtype

    elements = prod(first.shape)
    nbytes = elements * sum(as_dtype(dtype).itemsize for dtype in of_each)
    nbytes += sum(prod(tensor.shape) * as_dtype(tensor.dtype).itemsize for tensor in read)
    return Work(nbytes, exponentials=functions * elements, dtype=as_dtype(first.dtype))


def forward_work(*names: str, functions: int = 0) -> StatesWork:
    """Return a function that computes the work of a forward from its arguments.

    Args:
        names: the names of the tensors that the forward streams.
        functions: the number of activation functions per element.
    """

    def work(reduction: str, dtype: Any, **arguments: Any) -> Work:
        tensors = _present_tensors(names, arguments)
        result = tensors[0].dtype if dtype is None else dtype
        return _work(tensors[0], tensors, [result] if reduction == "none" else [], functions)

    return work


def backward_work(
    *names: str,
    needed: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None,
    functions: int = 0,
    flags: tuple[str, ...] = (),
) -> StatesWork:
    """Return a function that computes the work of a backward from its arguments.

    Args:
        names: the names of the tensors of the loss.
        needed: returns, for the names of the tensors whose gradients are requested, the names of the tensors that the
            kernel reads; None means that it reads all tensors.
        functions: the number of activation functions per element.
        flags: names of flags of the kernel: ``functions`` counts only if one of these flags is True; empty if it counts
            always.
    """

    def work(grad_loss_hbm: Any, reduction: str, **arguments: Any) -> Work:
        wanted = tuple(name for name in names if arguments.get(f"grad_{name}_wanted", name == names[0]))
        read = _present_tensors(names if needed is None else needed(wanted), arguments)
        of_each = [tensor.dtype for tensor in _present_tensors(wanted, arguments)]
        of_each += [grad_loss_hbm.dtype] if reduction == "none" else []
        first = arguments[f"{names[0]}_hbm"]
        return _work(first, read, of_each, functions if not flags or any(arguments[name] for name in flags) else 0)

    return work


def forward_backward_work(*names: str, functions: int = 0) -> StatesWork:
    """Return a function that computes the work of a fused forward-backward from its arguments.

    Args:
        names: the names of the tensors, each of which is read once.
        functions: the number of activation functions per element.
    """

    def work(grad_loss_hbm: Any, reduction: str, dtype: Any, **arguments: Any) -> Work:
        tensors = _present_tensors(names, arguments)
        wanted = tuple(name for name in names if arguments[f"grad_{name}_wanted"])
        of_each = [tensor.dtype for tensor in _present_tensors(wanted, arguments)]
        of_each += [tensors[0].dtype if dtype is None else dtype, grad_loss_hbm.dtype] if reduction == "none" else []
        return _work(tensors[0], tensors, of_each, functions)

    return work


@dataclass(frozen=True)
class GradientError:
    """The accepted error of a gradient, and notes of the backward's guarantee; u = 2^-23.

    Attributes:
        bound: the bound in words, if every activation function has an error of u / 2, that of correct rounding.
        functions: for each activation function by name, the number of u that the bound grows by for each u of error of
            the function beyond u / 2.
        notes: further notes of the guarantee.
    """

    bound: str
    functions: Mapping[str, float] = field(default_factory=dict)
    notes: str = "gradients of the other tensors are computed only on request"

    def __str__(self) -> str:
        """Return the bound in words.

        An example is ``"4 u times the gradient; plus 2 u for each u of error of log beyond u / 2; plus half a ulp; u =
        2^-23"``.
        """
        further = "".join(f"; plus {units:g} u {of_each_unit(name)}" for name, units in self.functions.items())
        return f"{self.bound}{further}; plus half a ulp; u = 2^-23"


@dataclass(frozen=True)
class Functions:
    """The minimum number of activation functions per element of the kernels of a loss.

    Attributes:
        forward: the number in the forward, and in the fused forward-backward.
        backward: the number in the backward.
        flags: names of flags of the backward: ``backward`` counts only if one of these flags is True; empty if it
            counts always.
        needed: returns, for the names of the tensors whose gradients are requested, the names of the tensors that the
            backward reads; None means that it reads all tensors.
    """

    forward: int = 1
    backward: int = 0
    flags: tuple[str, ...] = ()
    needed: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class ElementwiseLoss(SizedLoss):
    """The registry entry of an elementwise loss.

    Attributes:
        forward_backward: the fused forward-backward kernel, or None.
        forms: the combinations of options that tests check.
    """

    forward_backward: Callable[..., Any] | None = None
    forms: tuple[Form, ...] = ()


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of the tensor with the name ``tensor``: a scalar for ``"grad_loss"``, else ``shape``."""
    return SCALAR if tensor == "grad_loss" else TensorSize(shape)


def launch_of(
    label: str, kernel: Callable[..., Any], time_limits: tuple[float, float], **options: Any
) -> ModelledLaunch:
    """Return a modelled launch on matrices without optional tensors; see :func:`nkilib.core.host.loss.sized_launch`."""
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
    family: Family = Family.CLASSIFICATION,
) -> ElementwiseLoss:
    """Return the registry entry of a loss, with launchable kernels.

    Args:
        name, module, formula, derivative, edges, differences, family: see :class:`nkilib.core.host.loss.Loss`.
        forward, backward, forward_backward: the kernel functions; the last one is the fused forward-backward kernel.
        errors: bounds on the error of the losses, one for each form.
        gradient_error: the bound on the error of the gradients.
        functions: the numbers of activation functions that the kernels need.
        time_limits: the largest accepted modelled times, in multiples of the bound of the hardware: ((forward in
            bfloat16, forward in float32), (backward in bfloat16, backward in float32)).
        forms: the combinations of options that :mod:`nkilib.verify` and tests check.
        further_launches: further launches whose modelled times the page of the loss shows.
        notes: further notes on the forward, for its guarantee.
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
        options=kernel_options(forward, _OF_EVERY_LOSS),
        tests=("tests/experimental/loss/skeletons/elementwise", "tests/torch/functions"),
        edges=edges,
        differences=differences,
        family=family,
        launches=(
            launch_of("forward, mean", forward, time_limits[0]),
            launch_of("backward, mean", backward, time_limits[1]),
            *further_launches,
        ),
        size_of=size_of,
        forms=forms,
    )


class ElementwiseReference(Protocol):
    """The float64 reference of an elementwise loss; tensors are passed under the names of the loss definition."""

    @property
    def stated(self) -> TermError:
        """The bound on the error of :meth:`value`, as the guarantee states it."""

    def value(self, tensors: Tensors) -> Derived:
        """Return the loss of each element, and the bound on its error in float32 arithmetic."""

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return, for each differentiable tensor by name, the derivatives of the losses with respect to its elements,
        with their errors in float32 arithmetic.

        ``functions`` has the errors of the activation functions.
        """


def _times(exact: Exact, weight: Float64Array) -> Exact:
    value = exact.value * weight
    return Exact(value, exact.error * np.abs(weight) + 0.5 * UNIT * np.abs(value))


@dataclass(frozen=True)
class WeightedReference:
    """The reference of a loss times the tensor ``"weight"``; the product rounds once more, which costs u / 2 of the
    product (u = 2^-23).

    Attributes:
        reference: the reference without the weight.
    """

    reference: ElementwiseReference

    @property
    def stated(self) -> TermError:
        """The bound on the error as the guarantee states it: of the loss without the weight, plus one rounding."""
        stated = self.reference.stated
        return replace(stated, own=stated.own + WEIGHT_UNITS)

    def value(self, tensors: Tensors) -> Derived:
        """Return loss * weight and its error."""
        return self.reference.value(tensors).times(tensors[WEIGHT])

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return each derivative times the weight, and the loss as the derivative with respect to the weight."""
        slopes = self.reference.derivative(tensors, functions)
        derivatives = {name: _times(slope, tensors[WEIGHT]) for name, slope in slopes.items()}
        return {**derivatives, WEIGHT: self.reference.value(tensors).exact(functions)}


def losses(
    reference: ElementwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    dtype: Any,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the loss of each element, and its accepted error if the kernel stores losses in ``dtype``."""
    with np.errstate(all="ignore"):
        exact = reference.value(as_float64(tensors)).exact(functions)
        error = exact.error + SMALLEST_NORMAL
        if np.dtype(dtype) != np.float32:
            error = error + rounding(exact.value, dtype)
        return Exact(within_range(exact.value, dtype), error)


def sum_bound(losses: Float64Array, errors: Float64Array, columns: int, run: int) -> float:
    """Return the accepted error of a sum of losses.

    Args:
        losses: the losses.
        errors: the accepted errors of the losses.
        columns: the number of columns of a tile.
        run: the number of columns of a run: its losses are added one after the other, then the sums of the runs.
    """
    tiles = div_ceil(losses.size, PARTITIONS * columns) + 2
    additions = run + SUMS_OF_RUN * div_ceil(columns, RUN_COLUMNS) + LEAF * (levels(tiles) + levels(PARTITIONS))
    return float(errors.sum() + additions * 0.5 * UNIT * np.abs(losses).sum()) + SMALLEST_NORMAL


def _run(tensors: Mapping[str, npt.NDArray[Any]]) -> int:
    return run_columns([tensor.dtype.itemsize for tensor in tensors.values()], PIECE_COLUMNS)


def reduced(
    reference: ElementwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    reduction: str,
    columns: int,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the sum or mean of the losses, [1], with its accepted error.

    ``columns`` is the number of columns of a tile; the error depends on it.
    """
    with np.errstate(all="ignore"):
        exact = reference.value(as_float64(tensors)).exact(functions)
        factor = reduction_factor(exact.value.shape, reduction)
        total = factor * exact.value.sum()
        error = factor * sum_bound(exact.value, exact.error, columns, _run(tensors)) + UNIT * abs(total)
    return Exact(np.array([total]), np.array([error]))


def gradients(
    reference: ElementwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    upstream: npt.NDArray[Any],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> dict[str, Exact]:
    """Return the gradient of each tensor by name, with its accepted error in the tensor's type.

    The products with the upstream gradient and the factor of the reduction round twice.
    """
    results = {}
    with np.errstate(all="ignore"):
        doubled = as_float64(tensors)
        grad = upstream.astype(np.float64) * reduction_factor(next(iter(doubled.values())).shape, reduction)
        for name, exact in reference.derivative(doubled, functions).items():
            value = grad * exact.value
            error = np.abs(grad) * exact.error + UNIT * np.abs(value) + SMALLEST_NORMAL
            dtype = tensors[name].dtype
            results[name] = Exact(within_range(value, dtype), error + rounding(value, dtype))
    return results
