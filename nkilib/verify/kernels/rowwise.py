# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cases of ``python -m nkilib verify`` for the row-wise losses, made from :data:`.rowwise_entries.ENTRIES`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.function_errors import GRANTED
from nkilib.experimental.loss.skeletons.rowwise.host import reference
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.kernels.rowwise_entries import ENTRIES, RowwiseEntry

# A tile of 128 rows and a short one; two chunks of a row and the rest. And short rows, several in a partition.
_SIZES: Final = (140, 1100)
_TILING: Final = {"columns": 512, "each": 1, "buffers": 2}
_SHORT_SIZES: Final = (700, 9)


def _tensors(entry: RowwiseEntry, type_name: str, sizes: tuple[int, int]) -> dict[str, Any]:
    return entry.made(sizes, (inputs.TYPES[type_name][0], np.dtype(np.float16)))


def _named(entry: RowwiseEntry, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[f"{name}_hbm"] for name in entry.tensors if f"{name}_hbm" in arguments}


def _forward(entry: RowwiseEntry, type_name: str, **options: Any) -> dict[str, Any]:
    return {**entry.arguments(_tensors(entry, type_name, _SIZES)), **_TILING, **options}


def _forward_references(entry: RowwiseEntry, arguments: Mapping[str, Any]) -> References:
    if arguments["reduction"] == "none":
        return {"loss": Reference(*reference.losses(entry.reference, _named(entry, arguments), np.float32, GRANTED))}
    return {
        "loss": Reference(
            *reference.reduced(entry.reference, _named(entry, arguments), arguments["reduction"], GRANTED)
        )
    }


def _backward(
    entry: RowwiseEntry, type_name: str, sizes: tuple[int, int], reduction: str, **wanted: bool
) -> dict[str, Any]:
    """Return the arguments of a backward, which is in place unless ``wanted`` selects gradients."""
    upstream = inputs.numbers(7, sizes[0] if reduction == "none" else 1) + np.float32(3)
    arguments = entry.backward_arguments(_tensors(entry, type_name, sizes), upstream, **wanted)
    tiling = _TILING if sizes == _SIZES else {}
    return {**arguments, **tiling, "reduction": reduction, "inplace": not wanted}


def _backward_references(
    entry: RowwiseEntry, type_name: str, sizes: tuple[int, int], arguments: Mapping[str, Any]
) -> References:
    tensors = _tensors(entry, type_name, sizes)
    gradients = reference.gradients(
        entry.reference, tensors, arguments["grad_loss_hbm"], arguments["reduction"], GRANTED
    )
    return {
        f"grad_{name}": Reference(*gradients[name], np.isfinite(gradients[name].error))
        for name in entry.gradients
        if arguments[f"grad_{name}_wanted"]
    }


def _of_entry(entry: RowwiseEntry, type_name: str) -> Iterator[Case]:
    yield from _forwards(entry, type_name)
    first, last = entry.gradients[0], entry.gradients[-1]
    for title, sizes, reduction, cores, wanted in (
        ("all, mean, in place", _SHORT_SIZES, "mean", 2, ()),
        (f"{last} alone, none", _SIZES, "none", 1, (last,)),
        (f"{first} alone, sum", _SHORT_SIZES, "sum", 2, (first,)),
    ):
        yield Case(
            f"backward of {entry.name}: {title}, {type_name}",
            False,
            sizes,
            entry.backward,
            partial(_backward, entry, type_name, sizes, reduction, **dict.fromkeys(wanted, True)),
            tuple(f"grad_{name}" for name in wanted or entry.gradients),
            partial(_backward_references, entry, type_name, sizes),
            cores,
            None if wanted else f"{first}_hbm",
        )


def _forwards(entry: RowwiseEntry, type_name: str) -> Iterator[Case]:
    """Yield a forward with coefficients, if the loss has some, and one without."""
    without = {"coefficients_wanted": False} if entry.has_coefficients else {}
    with_coefficients = ("loss", "coefficients") if entry.has_coefficients else ("loss",)
    for reduction, cores, options, results in (
        ("mean", 2, {}, with_coefficients),
        ("none", 1, {"dtype": nl.float32, **without}, ("loss",)),
    ):
        yield Case(
            f"forward of {entry.name}: {reduction}, {type_name}",
            False,
            _SIZES,
            entry.forward,
            partial(_forward, entry, type_name, reduction=reduction, **options),
            results,
            partial(_forward_references, entry),
            cores,
        )


def cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    for type_name in inputs.TYPES:
        for entry in ENTRIES:
            yield from _of_entry(entry, type_name)
