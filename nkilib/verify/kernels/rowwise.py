# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the losses of rows, from their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.function_errors import GRANTED
from nkilib.experimental.loss.skeletons.rowwise.host import truth
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths
from nkilib.verify.kernels.rowwise_kinds import KINDS, RowwiseKind

# A tile of 128 rows and a short one; two chunks of a row and what is left. And short rows, several in a partition.
_SIZES: Final = (140, 1100)
_TILING: Final = {"columns": 512, "each": 1, "buffers": 2}
_SHORT_SIZES: Final = (700, 9)


def _tensors(kind: RowwiseKind, type_name: str, sizes: tuple[int, int]) -> dict[str, Any]:
    return kind.made(sizes, (inputs.TYPES[type_name][0], np.dtype(np.float16)))


def _named(kind: RowwiseKind, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[f"{name}_hbm"] for name in kind.tensors if f"{name}_hbm" in given}


def _forward(kind: RowwiseKind, type_name: str, **options: Any) -> dict[str, Any]:
    return {**kind.arguments(_tensors(kind, type_name, _SIZES)), **_TILING, **options}


def _forward_truths(kind: RowwiseKind, given: Mapping[str, Any]) -> Truths:
    if given["reduction"] == "none":
        return {"loss": Truth(*truth.losses(kind.truth, _named(kind, given), np.float32, GRANTED))}
    return {"loss": Truth(*truth.reduced(kind.truth, _named(kind, given), given["reduction"], GRANTED))}


def _backward(
    kind: RowwiseKind, type_name: str, sizes: tuple[int, int], reduction: str, **wanted: bool
) -> dict[str, Any]:
    """In place where all gradients are wanted."""
    upstream = inputs.numbers(7, sizes[0] if reduction == "none" else 1) + np.float32(3)
    given = kind.backward_arguments(_tensors(kind, type_name, sizes), upstream, **wanted)
    tiling = _TILING if sizes == _SIZES else {}
    return {**given, **tiling, "reduction": reduction, "inplace": not wanted}


def _backward_truths(kind: RowwiseKind, type_name: str, sizes: tuple[int, int], given: Mapping[str, Any]) -> Truths:
    tensors = _tensors(kind, type_name, sizes)
    found = truth.gradients(kind.truth, tensors, given["grad_loss_hbm"], given["reduction"], GRANTED)
    return {
        f"grad_{name}": Truth(*found[name], np.isfinite(found[name].error))
        for name in kind.gradients
        if given[f"grad_{name}_wanted"]
    }


def _of_kind(kind: RowwiseKind, type_name: str) -> Iterator[Case]:
    yield from _forwards(kind, type_name)
    first, last = kind.gradients[0], kind.gradients[-1]
    for what, sizes, reduction, cores, wanted in (
        ("all, mean, in place", _SHORT_SIZES, "mean", 2, ()),
        (f"{last} alone, none", _SIZES, "none", 1, (last,)),
        (f"{first} alone, sum", _SHORT_SIZES, "sum", 2, (first,)),
    ):
        yield Case(
            f"backward of {kind.name}: {what}, {type_name}",
            False,
            sizes,
            kind.backward,
            partial(_backward, kind, type_name, sizes, reduction, **dict.fromkeys(wanted, True)),
            tuple(f"grad_{name}" for name in wanted or kind.gradients),
            partial(_backward_truths, kind, type_name, sizes),
            cores,
            None if wanted else f"{first}_hbm",
        )


def _forwards(kind: RowwiseKind, type_name: str) -> Iterator[Case]:
    """With coefficients, where there are some, and without."""
    without = {"coefficients_wanted": False} if kind.has_coefficients else {}
    with_coefficients = ("loss", "coefficients") if kind.has_coefficients else ("loss",)
    for reduction, cores, options, results in (
        ("mean", 2, {}, with_coefficients),
        ("none", 1, {"dtype": nl.float32, **without}, ("loss",)),
    ):
        yield Case(
            f"forward of {kind.name}: {reduction}, {type_name}",
            False,
            _SIZES,
            kind.forward,
            partial(_forward, kind, type_name, reduction=reduction, **options),
            results,
            partial(_forward_truths, kind),
            cores,
        )


def cases() -> Iterator[Case]:
    """All of them."""
    for type_name in inputs.TYPES:
        for kind in KINDS:
            yield from _of_kind(kind, type_name)
