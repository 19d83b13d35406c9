# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry entry of a row-wise loss, and the data derived from it.

An entry states only data found nowhere else; tensors, gradients and options are read from the signatures of
the kernels. The work of the kernels is stated here: whatever the tiling, every tensor that is needed
crosses HBM once. The simulator is imported only when a profile asks for the work: on hardware the kernels
do not need it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

from nkilib.base.guarantee import Guarantee, TermError
from nkilib.base.work import StatesWork, Work
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Form, gradients_of, options_of, tensors_of
from nkilib.core.host.sized_loss import SCALAR, SizedLoss, TensorSize, sized_launch, tensor_bytes
from nkilib.core.rows.sizes import FLOAT32_BYTES

Arguments = Mapping[str, Any]
# Arguments of every kernel.
_OF_EVERY_LOSS: Final = ("reduction", "coefficients_wanted", "dtype", "columns", "each", "buffers")
_SHAPE: Final = (4096, 32128)
_COEFFICIENTS, _UPSTREAM = "coefficients", "grad_loss"
_ROWS: Final = (
    "each row: runs of 1,024 elements are added in the order of the engine's accumulator, then the sums of the runs; "
    "reduction over rows: the rows of a partition are added first, then 32 numbers at a time; the tiling depends only "
    "on shape and types"
)


def _none(arguments: Arguments) -> int:
    return 0


@dataclass(frozen=True)
class RowTensors:
    """The tensors of a loss besides its matrices [N, D] of one shape, and the matrices that gradients need.

    Attributes:
        vectors: the names of vectors with one float32 per row, which the forward takes.
        shared: the name of a tensor that may have one number per column, and may be None.
        coefficients: a function that returns, for the arguments of a kernel, the number of scalars per row that
            the forward keeps for the backward.
        needed: a function that returns, for the numbers of the tensors whose gradients are requested and the
            arguments of the kernel, the numbers of the tensors from which these gradients are computed; None
            means that all are needed.
    """

    vectors: tuple[str, ...] = ()
    shared: str = ""
    coefficients: Callable[[Arguments], int] = _none
    needed: Callable[[tuple[int, ...], Arguments], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class RowGradients:
    """The guarantees of the backward of a loss, besides those that all row-wise losses share.

    Attributes:
        error: the bound on the error of gradients, in words.
        notes: further notes.
        accumulator: the precision of sums over rows, if a gradient is such a sum.
    """

    error: str
    notes: str
    accumulator: str = "none"


@dataclass(frozen=True)
class RowwiseLoss(SizedLoss):
    """The registry entry of a row-wise loss.

    Attributes:
        rows: the tensors besides matrices.
        forms: the forms of the loss, with their options, that are checked.
    """

    rows: RowTensors = RowTensors()
    forms: tuple[Form, ...] = ()


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
) -> RowwiseLoss:
    """Return the registry entry of a loss, and make its kernels launchable.

    Args:
        name, module, formula, derivative, edges, differences: see :class:`nkilib.core.host.loss.Loss`.
        forward, backward: the kernel functions.
        errors: bounds on the error of the losses, one for each form; activation functions are assumed to be
            correctly rounded, and n is the number of consecutive additions in the sum of a row.
        gradients: the guarantees of the backward.
        rows: the tensors besides matrices.
        time_limits: the largest accepted modelled times of forward and backward, in multiples of the bound,
            each as (in bfloat16, in float32).
        forms: the forms that :mod:`nkilib.verify` and the tests of all row-wise losses check.
        functions: the number of activation functions per element that the losses need.
        functions_of: the names of the tensors whose gradients need one activation function per element each.
        notes: further notes on the losses.
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
        options=options_of(forward, _OF_EVERY_LOSS),
        tests=tests,
        edges=edges,
        differences=differences,
        launches=(
            sized_launch("forward, mean", forward, time_limits[0], size_of, _SHAPE),
            sized_launch("backward, mean", backward, time_limits[1], size_of, _SHAPE),
        ),
        size_of=size_of,
        rows=rows,
        forms=forms,
    )


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


def _forward_work(forward: Callable[..., Any], rows: RowTensors, functions: int) -> StatesWork:
    """Return a function that computes the work of a forward: all matrices, the vectors, and the stored results
    cross HBM.
    """
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

    The tensors that gradients need, coefficients, upstream gradients and stored results cross HBM.
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


def _matrices(kernel: Callable[..., Any], rows: RowTensors) -> tuple[str, ...]:
    others = {*rows.vectors, rows.shared, _COEFFICIENTS, _UPSTREAM}
    return tuple(name for name in tensors_of(kernel) if name not in others)


def _work(first: Any, nbytes: int, functions: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    return Work(nbytes, exponentials=functions * prod(first.shape), dtype=as_dtype(first.dtype))
