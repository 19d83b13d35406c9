# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of a row-wise loss: its registry entry, with guarantees and work, and its float64 results with the
accepted errors.

:func:`rowwise_loss` makes the entry, a :class:`RowwiseLoss`; it reads tensors, gradients and options from the kernels'
signatures. :func:`losses`, :func:`reduced` and :func:`gradients` compute the results of the kernels in float64 from a
:class:`RowwiseReference`. *Matrices* are tensors [N, D]: N rows, D columns.

The work does not depend on the tiling: every needed tensor is read once, every result written once in HBM. The
simulator is imported only when a profile asks for the work: the kernels on hardware do not need the simulator.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. The reference of a loss
has the errors of each row's loss and of its derivatives. This module adds the errors of sums over rows, of products
with upstream gradients and of rounding to other types. The sum of a row of D numbers has :func:`additions` consecutive
additions, each of which costs u / 2 of the sum of magnitudes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import Guarantee, TermError
from nkilib.base.statements import StatesWork, Work
from nkilib.core.cores import LEAF, levels
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.host.error_bounds import (
    SIMULATED,
    SMALLEST_NORMAL,
    UNIT,
    Derived,
    Exact,
    Float64Array,
    FunctionErrors,
    as_float64,
    rounding,
)
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import (
    SCALAR,
    Family,
    Form,
    SizedLoss,
    TensorSize,
    gradients_of,
    kernel_options,
    sized_launch,
    tensor_bytes,
    tensors_of,
)
from nkilib.experimental.loss.skeletons.rowwise.tiling import MOST_EACH, RUN_COLUMNS, partitions_of_tile

Arguments = Mapping[str, Any]
Tensors = Mapping[str, Float64Array]
# Arguments of every kernel.
_OF_EVERY_LOSS: Final = ("reduction", "coefficients_wanted", "dtype", "columns", "each", "buffers")
_SHAPE: Final = (4096, 32128)
_COEFFICIENTS, _UPSTREAM = "coefficients", "grad_loss"
_HALF: Final = 0.5 * UNIT
_ROWS: Final = (
    "each row: runs of 1,024 elements are added in the order of the engine's accumulator, then the sums of the runs; "
    "reduction over rows: the rows of a partition are added first, then 32 numbers at a time; the tiling depends only "
    "on shape and types"
)


def _none(arguments: Arguments) -> int:
    return 0


@dataclass(frozen=True)
class RowTensors:
    """The tensors of a loss that are not matrices, and the tensors that gradients need.

    Attributes:
        vectors: the names of arguments float32 [N] of the forward, such as targets.
        shared: the name of an optional argument that is [1, D] or [N, D], such as weights; "" if there is none.
        coefficients: returns, for the arguments of a kernel by name, the number of coefficients per row that the
            forward returns for the backward.
        needed: returns the numbers of the tensors that the backward reads, for the numbers of the tensors whose
            gradients are requested and the arguments of the kernel by name; None means all tensors.
    """

    vectors: tuple[str, ...] = ()
    shared: str = ""
    coefficients: Callable[[Arguments], int] = _none
    needed: Callable[[tuple[int, ...], Arguments], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class RowGradients:
    """The fields of the backward's :class:`Guarantee` that differ between row-wise losses.

    Attributes:
        error: the bound on the error of gradients, in words.
        notes: further notes, in words.
        accumulator: the type of sums over rows, if a gradient is such a sum; else ``"none"``.
    """

    error: str
    notes: str
    accumulator: str = "none"


@dataclass(frozen=True)
class RowwiseLoss(SizedLoss):
    """The registry entry of a row-wise loss.

    Attributes:
        rows: the tensors that are not matrices.
        forms: the combinations of options that tests check.
    """

    rows: RowTensors = RowTensors()
    forms: tuple[Form, ...] = ()


def _size_of(
    forward: Callable[..., Any], rows: RowTensors, tensor: str, shape: tuple[int, ...], options: Arguments
) -> TensorSize:
    if tensor == _UPSTREAM:
        return SCALAR
    if tensor == _COEFFICIENTS:
        defaults = {name: parameter.default for name, parameter in inspect.signature(forward).parameters.items()}
        return TensorSize((rows.coefficients({**defaults, **options}), shape[0]), "float32")
    if tensor in rows.vectors:
        return TensorSize(shape[:1], "float32")
    return TensorSize((1, shape[1]) if tensor == rows.shared else shape)


def _forward_guarantee(errors: tuple[TermError, ...], notes: str) -> Guarantee:
    return Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error=f"{'; '.join(map(str, errors))}; n is the number of successive additions, u = 2^-23",
        notes="; ".join(filter(None, (_ROWS, notes))),
        term_errors=errors,
    )


def _backward_guarantee(gradients: RowGradients, in_place: str) -> Guarantee:
    return Guarantee(
        math="float32",
        accumulator=gradients.accumulator,
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=in_place,
        error=gradients.error,
        notes=gradients.notes,
    )


def _matrices(kernel: Callable[..., Any], rows: RowTensors) -> tuple[str, ...]:
    others = {*rows.vectors, rows.shared, _COEFFICIENTS, _UPSTREAM}
    return tuple(name for name in tensors_of(kernel) if name not in others)


def _work(first: Any, nbytes: int, functions: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    return Work(nbytes, exponentials=functions * prod(first.shape), dtype=as_dtype(first.dtype))


def _forward_work(forward: Callable[..., Any], rows: RowTensors, functions: int) -> StatesWork:
    """Return a function that computes the work of a forward; ``functions`` is its activation functions per element."""
    matrices = _matrices(forward, rows)

    def work(**arguments: Any) -> Work:
        from nkilib.simulator.terms.dtypes import as_dtype

        first, dtype = arguments[f"{matrices[0]}_hbm"], arguments["dtype"]
        numbers = len(rows.vectors)
        numbers += rows.coefficients(arguments) if arguments.get("coefficients_wanted") else 0
        loss_bytes = as_dtype(first.dtype if dtype is None else dtype).itemsize
        row_bytes = numbers * FLOAT32_BYTES + (loss_bytes if arguments["reduction"] == "none" else 0)
        nbytes = tensor_bytes(*(arguments[f"{name}_hbm"] for name in (*matrices, *filter(None, [rows.shared]))))
        return _work(first, nbytes + first.shape[0] * row_bytes, functions)

    return work


def _backward_work(backward: Callable[..., Any], rows: RowTensors, functions_of: tuple[str, ...]) -> StatesWork:
    """Return a function that computes the work of a backward.

    Each requested gradient of a tensor named in ``functions_of`` takes one activation function per element.
    """
    matrices = _matrices(backward, rows)
    names = (*matrices, *filter(None, [rows.shared]))

    def work(**arguments: Any) -> Work:
        wanted = tuple(number for number, name in enumerate(names) if arguments.get(f"grad_{name}_wanted"))
        everything = tuple(range(len(names)))
        needed = everything if rows.needed is None else rows.needed(wanted, arguments)
        nbytes = tensor_bytes(*(arguments[f"{names[number]}_hbm"] for number in (*needed, *wanted)))
        first = arguments[f"{matrices[0]}_hbm"]
        nbytes += first.shape[0] * rows.coefficients(arguments) * FLOAT32_BYTES + tensor_bytes(
            arguments["grad_loss_hbm"]
        )
        return _work(first, nbytes, sum(bool(arguments[f"grad_{name}_wanted"]) for name in functions_of))

    return work


def rowwise_loss(
    name: str,
    module: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    formula: str,
    derivative: str,
    errors: tuple[TermError, ...],
    gradients: RowGradients,
    rows: RowTensors,
    time_limits: tuple[tuple[float, float], tuple[float, float]],
    forms: tuple[Form, ...],
    functions: int = 0,
    functions_of: tuple[str, ...] = (),
    edges: str = "",
    differences: str = "",
    notes: str = "",
    family: Family = Family.CLASSIFICATION,
) -> RowwiseLoss:
    """Return the registry entry of a loss, with launchable kernels.

    Args:
        name, module, formula, derivative, edges, differences, family: see :class:`nkilib.core.host.loss.Loss`.
        forward, backward: the kernel functions.
        errors: bounds on the error of the losses, one for each form of the loss.
        gradients: the guarantees of the backward.
        rows: the tensors that are not matrices.
        time_limits: the largest accepted modelled times, in multiples of the bound of the hardware: ((forward in
            bfloat16, forward in float32), (backward in bfloat16, backward in float32)).
        forms: the combinations of options that :mod:`nkilib.verify` and tests check.
        functions: the number of activation functions per element of the forward.
        functions_of: the names of the tensors whose gradients need one activation function per element each.
        notes: further notes on the forward, for its guarantee.
    """
    size_of = partial(_size_of, forward, rows)
    tests = ("tests/experimental/loss/skeletons/rowwise", "tests/torch/functions")
    return RowwiseLoss(
        name=name,
        module=module,
        forward=launchable(forward, _forward_guarantee(errors, notes), _forward_work(forward, rows, functions)),
        backward=launchable(
            backward,
            _backward_guarantee(gradients, f"{next(iter(tensors_of(backward)))}_hbm"),
            _backward_work(backward, rows, functions_of),
        ),
        formula=formula,
        derivative=derivative,
        differentiated=gradients_of(backward),
        options=kernel_options(forward, _OF_EVERY_LOSS),
        tests=tests,
        edges=edges,
        differences=differences,
        family=family,
        launches=(
            sized_launch("forward, mean", forward, time_limits[0], size_of, _SHAPE),
            sized_launch("backward, mean", backward, time_limits[1], size_of, _SHAPE),
        ),
        size_of=size_of,
        rows=rows,
        forms=forms,
    )


class RowwiseReference(Protocol):
    """The float64 reference of a row-wise loss; ``tensors`` has the inputs by name, without the suffix ``_hbm``."""

    @property
    def stated(self) -> TermError:
        """The bound on the error of :meth:`value`, as the guarantee states it; its n is :func:`additions` of D."""

    def value(self, tensors: Tensors) -> Derived:
        """Return the loss of each row, [N], and the bound on its error in float32 arithmetic."""

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return, for each differentiable tensor by name, the derivatives of the rows' losses with respect to the
        elements of the rows, [N, D], with their errors; an error is infinite where rounding may select another branch.
        """


def additions(columns: int) -> float:
    """Return the number of consecutive additions in the sum of a row: within a run of 1,024 columns, then over the
    runs.
    """
    return min(columns, RUN_COLUMNS) + div_ceil(columns, RUN_COLUMNS) + 1.0


def summed(terms: Float64Array, errors: Float64Array) -> Exact:
    """Return the sum of each row of ``terms``, with its accepted error; ``errors`` are the errors of the terms."""
    cost = additions(terms.shape[1]) * _HALF * np.abs(terms).sum(axis=1)
    return Exact(terms.sum(axis=1), errors.sum(axis=1) + cost)


def losses(
    reference: RowwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    dtype: Any,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the loss of each row, [N], and its accepted error if the kernel stores losses in ``dtype``."""
    with np.errstate(all="ignore"):
        exact = reference.value(as_float64(tensors)).exact(functions)
        error = exact.error + SMALLEST_NORMAL
        return Exact(exact.value, error if np.dtype(dtype) == np.float32 else error + rounding(exact.value, dtype))


def factor_of(reduction: str, rows: int) -> float:
    """Return 1 / ``rows`` for ``"mean"``, else 1."""
    return 1.0 / rows if reduction == "mean" else 1.0


def reduced(
    reference: RowwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the sum or mean of the losses, [1], with its accepted error."""
    exact = reference.value(as_float64(tensors)).exact(functions)
    rows = exact.value.size
    tiles = div_ceil(rows, partitions_of_tile(rows)) + 2
    numbers = min(rows, MOST_EACH) + LEAF * (levels(tiles) + levels(PARTITIONS))
    error = exact.error.sum() + numbers * _HALF * np.abs(exact.value).sum()
    factor = factor_of(reduction, rows)
    value = exact.value.sum() * factor
    return Exact(np.array([value]), np.array([error * factor + UNIT * abs(value) + SMALLEST_NORMAL]))


def _additions_of_rows(values: Float64Array) -> float:
    """Return the maximum number of consecutive additions in a sum over all rows of ``values`` [N, D] in the backward.

    The tiles are added first, then the rows of a partition by halves, then the partitions.
    """
    rows = len(values)
    partitions = partitions_of_tile(rows)
    return div_ceil(rows, partitions) / 2.0 + MOST_EACH.bit_length() + partitions + 3.0


def gradients(
    reference: RowwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    upstream: npt.NDArray[Any],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> dict[str, Exact]:
    """Return the gradient of each tensor by name, in the tensor's shape, with the accepted error in the tensor's type.

    Args:
        reference: the reference of the loss.
        tensors: the inputs by name.
        upstream: the upstream gradient, [N], or [1] for a sum or mean.
        reduction: ``"none"``, ``"sum"`` or ``"mean"``.
        functions: the errors of the activation functions.
    """
    results = {}
    with np.errstate(all="ignore"):
        for name, exact in reference.derivative(as_float64(tensors), functions).items():
            grad = upstream.astype(np.float64).reshape(-1, 1) * factor_of(reduction, len(exact.value))
            value = grad * exact.value
            error = np.abs(grad) * exact.error + 2.0 * UNIT * np.abs(value) + SMALLEST_NORMAL
            if tensors[name].shape[0] < len(value):
                error = error.sum(axis=0, keepdims=True) + _additions_of_rows(value) * _HALF * np.abs(value).sum(axis=0)
                value = value.sum(axis=0, keepdims=True)
            results[name] = Exact(value, error + rounding(value, tensors[name].dtype))
    return results
