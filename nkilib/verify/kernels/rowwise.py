# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the row-wise losses of the registry, each with some combinations of options (:data:`ENTRIES`)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.error_bounds import GRANTED
from nkilib.core.host.loss import Form, Sample
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.rowwise import host as reference
from nkilib.experimental.loss.skeletons.rowwise.host import RowwiseLoss, RowwiseReference
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.kernels.inputs import MAKERS, Shape
from nkilib.verify.step import Array

# A tile of 128 rows and a short one; two chunks of a row and the rest. And short rows, several in a partition.
_SIZES: Final = (140, 1100)
_TILING: Final = {"columns": 512, "each": 1, "buffers": 2}
_SHORT_SIZES: Final = (700, 9)


@dataclass(frozen=True)
class RowwiseEntry:
    """A row-wise loss with a combination of options.

    Attributes:
        name: the name of the loss, followed by a label for the options.
        forward, backward: the kernels.
        reference: the float64 reference, with the same options.
        tensors: the distribution of each tensor, by name, in the order of the kernel's arguments.
        gradients: the names of the tensors whose gradients the backward returns, in this order.
        options: the options of the forward.
        of_forward: the names of tensors and options that only the forward takes.
        has_coefficients: whether the forward returns coefficients, from which the backward computes the gradients.
    """

    name: str
    forward: Any
    backward: Any
    reference: RowwiseReference
    tensors: Mapping[str, Sample]
    gradients: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    of_forward: tuple[str, ...] = ()
    has_coefficients: bool = True

    @classmethod
    def of(cls, loss: RowwiseLoss, form: Form) -> RowwiseEntry:
        """Return the entry for one combination of options (``form``) of a registered loss."""
        forward, backward = (inspect.signature(kernel).parameters for kernel in (loss.forward, loss.backward))
        return cls(
            f"{loss.name}{form.label}",
            loss.forward,
            loss.backward,
            form.reference,
            form.samples,
            tuple(name for name in loss.differentiated if name in form.samples),
            form.options,
            of_forward=tuple(name.removesuffix("_hbm") for name in forward if name not in backward),
            has_coefficients="coefficients_hbm" in backward,
        )

    def made(self, shape: Shape, dtypes: tuple[Any, ...] = (np.float32,)) -> dict[str, Array]:
        """Return pseudo-random tensors of a shape, by name.

        Args:
            shape: the shape of the matrices; other tensors have one float32 number per row.
            dtypes: the types of the matrices in order, repeated if there are fewer types than tensors.
        """
        tensors = {name: MAKERS[sample](seed, shape) for seed, (name, sample) in enumerate(self.tensors.items())}
        types = {
            name: dtypes[at % len(dtypes)] if tensor.ndim == 2 else np.float32
            for at, (name, tensor) in enumerate(tensors.items())
        }
        return {name: np.ascontiguousarray(tensor.astype(types[name])) for name, tensor in tensors.items()}

    def arguments(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Return the keyword arguments of the forward, except the reduction."""
        return {**{f"{name}_hbm": tensor for name, tensor in tensors.items()}, **self.options}

    def backward_arguments(self, tensors: Mapping[str, Array], upstream: Array, **wanted: bool) -> dict[str, Any]:
        """Return the arguments of the backward.

        Args:
            tensors: the tensors by name.
            upstream: the upstream gradient.
            wanted: by name of a tensor, whether its gradient is wanted; without any, all are.
        """
        arguments = {f"{name}_hbm": tensor for name, tensor in tensors.items() if name not in self.of_forward}
        arguments |= {name: value for name, value in self.options.items() if name not in self.of_forward}
        if self.has_coefficients:
            _, coefficients = self.forward(**self.arguments(tensors))
            arguments["coefficients_hbm"] = np.asarray(coefficients)
        flags = {f"grad_{name}_wanted": wanted.get(name, not wanted) for name in self.gradients}
        return {**arguments, "grad_loss_hbm": upstream, **flags}


ENTRIES: Final = tuple(
    RowwiseEntry.of(loss, form) for loss in LOSSES if isinstance(loss, RowwiseLoss) for form in loss.forms
)
"""Each loss in each of its forms; verification and tests go through all of them."""


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


def _forwards(entry: RowwiseEntry, type_name: str) -> Iterator[Case]:
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


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    for type_name in inputs.TYPES:
        for entry in ENTRIES:
            yield from _of_entry(entry, type_name)
