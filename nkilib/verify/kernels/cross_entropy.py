# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of plain cross-entropy, in which every target is a class and every position is valid.

In the last case, a kernel of this module (:func:`inlined_cross_entropy`) calls forward and backward, as kernels of
users do. The functions ``..._references`` return the float64 references of a launch, with bounds on the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import choose_tiling, cross_entropy_backward, cross_entropy_forward, inline
from nkilib.experimental.loss.bounds import forward_bounds, gradient_bound
from nkilib.experimental.loss.reference import gradient_of_rows, gradient_scale, row_statistics
from nkilib.nki import nki, nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.step import Array

# Three batches on one core, two on two; two full chunks and a short one.
SMALL: Final[dict[str, Any]] = {"positions_per_batch": 2, "chunk_size": 16}
# Two batches on each core, the second one a short one; four chunks, the last one a short one.
MIDDLE: Final[dict[str, Any]] = {"positions_per_batch": 64, "chunk_size": 300}
# Several partitions a position, in three batches on each core; and several positions a partition.
LAYOUTS: Final[dict[str, dict[str, Any]]] = {
    "several partitions a position": {"positions_per_batch": 128, "partitions_per_position": 4},
    "several positions a partition": {"positions_per_batch": 128, "positions_per_partition": 2},
}
_SMALL_SIZES: Final = (5, 37)
_MIDDLE_SIZES: Final = (140, 1000)
# A core has more positions than partitions, and not a multiple of them.
_LAYOUT_SIZES: Final = (300, 501)
_ROUNDED_SIZES: Final = (20, 1000)
# More than 128 rows to recompute on each of two cores.
_LATE_SIZES: Final = (280, 120)
# A batch of all partitions on each core, cut up as users are advised to.
_LONG_SIZES: Final = (256, 32128)


def loss_types(dtype: Any, lse_dtype: Any = None) -> tuple[Any, Any]:
    """Return the numpy types of the results loss and log-sum-exp, for the arguments ``dtype`` and ``lse_dtype`` of a
    launch.
    """
    return inputs.ALL_TYPES[str(dtype)][0], inputs.ALL_TYPES[str(dtype if lse_dtype is None else lse_dtype)][0]


def exact_lse(logits: Array, targets: Array, dtype: Any) -> Array:
    """Return the exact log-sum-exp of each row, rounded to float32, as the backward would get it from a forward.

    ``dtype`` is the type of the kernel's tiles, to which the logits are rounded first.
    """
    with np.errstate(all="ignore"):
        return row_statistics(logits, targets, dtype).lse.astype(np.float32)


def forward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 references of loss and log-sum-exp, with the bounds that are derived for them."""
    with np.errstate(all="ignore"):
        statistics = row_statistics(arguments["logits_hbm"], arguments["targets_hbm"], arguments["dtype"])
        bounds = forward_bounds(statistics, *loss_types(arguments["dtype"], arguments.get("lse_dtype")))
    return {"loss": Reference(statistics.loss, bounds[0]), "lse": Reference(statistics.lse, bounds[1])}


def backward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 reference of the gradient, with the bound that is derived for it."""
    logits = arguments["logits_hbm"]
    scale = gradient_scale(arguments.get("reduction", "mean"), len(logits))
    rows = logits, arguments["targets_hbm"], arguments["lse_state_hbm"], scale, arguments["dtype"]
    result = logits.dtype if arguments.get("inplace", True) else loss_types(arguments["dtype"])[0]
    with np.errstate(all="ignore"):
        return {"gradient": Reference(gradient_of_rows(*rows), gradient_bound(*rows, result))}


def _tiling(positions: int, vocabulary: int, type_name: str, direction: str) -> dict[str, Any]:
    if vocabulary < 1000:
        return SMALL
    if vocabulary < 10000:
        return MIDDLE
    return dict(choose_tiling(positions, vocabulary, type_name, direction)._asdict())


def _forward(positions: int, vocabulary: int, type_name: str, **options: Any) -> dict[str, Any]:
    return {
        "logits_hbm": inputs.logits(positions, vocabulary, type_name),
        "targets_hbm": inputs.targets(positions, vocabulary),
        "dtype": inputs.ALL_TYPES[type_name][1],
        **_tiling(positions, vocabulary, type_name, "forward"),
        **options,
    }


def _backward(
    positions: int, vocabulary: int, type_name: str, lse_type: str = "float32", **options: Any
) -> dict[str, Any]:
    arguments = {
        **_forward(positions, vocabulary, type_name),
        **_tiling(positions, vocabulary, type_name, "backward"),
        **options,
    }
    lse = exact_lse(arguments["logits_hbm"], arguments["targets_hbm"], arguments["dtype"])
    return {**arguments, "lse_state_hbm": lse.astype(inputs.ALL_TYPES[lse_type][0])}


def _special(type_name: str, **options: Any) -> dict[str, Any]:
    return {
        "logits_hbm": inputs.special_logits(type_name),
        "targets_hbm": inputs.special_targets(),
        "dtype": inputs.ALL_TYPES[type_name][1],
        **inputs.SPECIAL_TILING,
        **options,
    }


def _late_maxima(type_name: str) -> dict[str, Any]:
    """Return arguments for a forward that subtracts a shift instead of a row's maximum, with rows that must be
    recomputed.

    On each core the loop that recomputes rows has more than one iteration.
    """
    arguments = _forward(*_LATE_SIZES, type_name, positions_per_batch=64, chunk_size=50, exact_maximum=False)
    return {**arguments, "logits_hbm": inputs.late_maxima(*_LATE_SIZES, type_name)}


def _special_backward(type_name: str) -> dict[str, Any]:
    arguments = _special(type_name)
    lse = exact_lse(arguments["logits_hbm"], arguments["targets_hbm"], arguments["dtype"])
    return {**arguments, "lse_state_hbm": lse, "inplace": False, "reduction": "sum"}


def _forward_case(
    name: str, cores: int, make: Any, sizes: tuple[int, int] = _SMALL_SIZES, is_quick: bool = False
) -> Case:
    kernel = cross_entropy_forward
    return Case(
        f"cross_entropy_forward: {name}", is_quick, sizes, kernel, make, ("loss", "lse"), forward_references, cores
    )


def _backward_case(
    name: str, cores: int, make: Any, sizes: tuple[int, int] = _SMALL_SIZES, is_inplace: bool = True
) -> Case:
    kernel, written = cross_entropy_backward, "logits_hbm" if is_inplace else None
    return Case(
        f"cross_entropy_backward: {name}",
        False,
        sizes,
        kernel,
        make,
        ("gradient",),
        backward_references,
        cores,
        written,
    )


@nki.jit
def inlined_cross_entropy(logits_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, ...]:
    """Compute loss, log-sum-exp, and the gradient of the mean in separate memory, all float32."""
    tiling = {**SMALL, "dtype": nl.float32}
    loss_hbm, lse_hbm = inline.cross_entropy_forward(logits_hbm, targets_hbm, **tiling)
    gradient_hbm = inline.cross_entropy_backward(logits_hbm, targets_hbm, lse_hbm, inplace=False, **tiling)
    return loss_hbm, lse_hbm, gradient_hbm


def logits_and_targets() -> dict[str, Any]:
    """Return the arguments of a kernel that calls the forward: logits [5, 37] and targets [5]."""
    return {
        "logits_hbm": inputs.logits(*_SMALL_SIZES, "float32"),
        "targets_hbm": inputs.targets(*_SMALL_SIZES),
    }


_LSE_UNITS: Final = 4.0


def widened(references: References) -> References:
    """Return the references with wider bounds, for gradients of a launch that computes its own log-sum-exp.

    An error of d in the log-sum-exp changes every softmax probability by a relative error of d.
    """
    return {
        name: reference._replace(bound=None if reference.bound is None else _LSE_UNITS * reference.bound)
        for name, reference in references.items()
    }


def _inlined_references(arguments: Mapping[str, Any]) -> References:
    """Return the references of a kernel that calls forward and backward.

    The reference of the gradient uses the exact log-sum-exp, rounded. The log-sum-exp of the launch may differ from it,
    so the bound is wider.
    """
    launch = {**arguments, "dtype": nl.float32}
    lse = exact_lse(arguments["logits_hbm"], arguments["targets_hbm"], nl.float32)
    backward = {**launch, "lse_state_hbm": lse, "inplace": False}
    return {**forward_references(launch), **widened(backward_references(backward))}


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    small, middle, long = _SMALL_SIZES, _MIDDLE_SIZES, _LONG_SIZES
    summed = partial(_backward, *small, "float32", inplace=False, reduction="sum")
    yield _forward_case("small, float32", 1, partial(_forward, *small, "float32"))
    yield _forward_case("small, bfloat16", 2, partial(_forward, *small, "bfloat16", lse_dtype=nl.float32))
    yield _backward_case("small, float32, sum", 1, summed, is_inplace=False)
    yield _backward_case("small, bfloat16, in place", 2, partial(_backward, *small, "bfloat16"))
    yield _backward_case(
        "small, bfloat16 with a bfloat16 log-sum-exp", 1, partial(_backward, *small, "bfloat16", lse_type="bfloat16")
    )
    for type_name in inputs.ALL_TYPES:
        yield _forward_case(f"1000 classes, {type_name}", 2, partial(_forward, *middle, type_name), middle)
        yield _backward_case(f"1000 classes, {type_name}, in place", 2, partial(_backward, *middle, type_name), middle)
        special, is_quick = f"special rows, {type_name}", type_name == "float32"
        yield _forward_case(special, 2, partial(_special, type_name), inputs.SPECIAL_SIZES, is_quick)
        yield _backward_case(special, 2, partial(_special_backward, type_name), inputs.SPECIAL_SIZES, is_inplace=False)
        shifted = partial(_special, type_name, exact_maximum=False)
        yield _forward_case(f"{special}, under a shift", 2, shifted, inputs.SPECIAL_SIZES)
        late = partial(_late_maxima, type_name)
        yield _forward_case(f"late maxima, under a shift, {type_name}", 2, late, _LATE_SIZES)
        for name, layout in LAYOUTS.items():
            named, sizes, more = f"{name}, {type_name}", _LAYOUT_SIZES, {"chunk_size": 501, **layout}
            yield _forward_case(named, 2, partial(_forward, *sizes, type_name, **more), sizes)
            yield _backward_case(f"{named}, in place", 2, partial(_backward, *sizes, type_name, **more), sizes)
            rows = partial(_special, type_name, **layout)
            yield _forward_case(f"{special}, {name}", 2, rows, inputs.SPECIAL_SIZES)
    # float32 logits in bfloat16 tiles: the DMA rounds on the way in, and in place widens on the way out.
    rounded, sizes = "rounded on loading", _ROUNDED_SIZES
    yield _forward_case(rounded, 2, partial(_forward, *sizes, "float32", dtype=nl.bfloat16), sizes)
    yield _backward_case(f"{rounded}, in place", 2, partial(_backward, *sizes, "float32", dtype=nl.bfloat16), sizes)
    yield _forward_case("32128 classes, bfloat16", 2, partial(_forward, *long, "bfloat16", lse_dtype=nl.float32), long)
    yield _backward_case("32128 classes, bfloat16, in place", 2, partial(_backward, *long, "bfloat16"), long)
    results = ("loss", "lse", "gradient")
    yield Case("inline", True, small, inlined_cross_entropy, logits_and_targets, results, _inlined_references, 2)
