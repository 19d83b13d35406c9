# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the elementwise losses, from the registry of losses, with some combinations of options (:data:`ENTRIES`).

Each combination has a forward and a backward case; some also have a fused forward-backward, and weights with one number
per row or column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.error_bounds import GRANTED
from nkilib.core.host.loss import Form, Sample, tensors_of
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.elementwise import host as reference
from nkilib.experimental.loss.skeletons.elementwise.host import ElementwiseLoss, ElementwiseReference
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.kernels.inputs import MAKERS, Shape
from nkilib.verify.step import Array

# Two full tiles, and the rest of the stream in two more.
_SIZES: Final = (140, 1001)
_TILING: Final = {"columns": 512, "buffers": 2}


@dataclass(frozen=True)
class ElementwiseEntry:
    """An elementwise loss with a combination of options.

    Attributes:
        name: the name of the loss, followed by a label for the options.
        forward, backward: the kernels.
        reference: the float64 reference, with the same options.
        tensors: the distribution of each tensor, by the names of the loss definition, in the order of the kernel's
            arguments.
        gradients: the names of the tensors whose gradients the backward returns, in this order.
        options: the options of both kernels.
        absent: the optional tensors that are None.
        both: the fused forward-backward kernel; None if there is none.
    """

    name: str
    forward: Any
    backward: Any
    reference: ElementwiseReference
    tensors: Mapping[str, Sample]
    gradients: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    both: Any = None

    @classmethod
    def of(cls, loss: ElementwiseLoss, form: Form) -> ElementwiseEntry:
        """Return the entry for one combination of options (``form``) of a registered loss."""
        return cls(
            f"{loss.name}{form.label}",
            loss.forward,
            loss.backward,
            form.reference,
            form.samples,
            tuple(name for name in loss.differentiated if name in form.samples),
            form.options,
            tuple(name for name in tensors_of(loss.forward) if name not in form.samples),
            loss.forward_backward,
        )

    def made(self, shape: Shape, dtypes: tuple[Any, ...] = (np.float32,)) -> dict[str, Array]:
        """Return pseudo-random tensors of a shape, by the names of the loss definition.

        Args:
            shape: the shape of all tensors.
            dtypes: the types of the tensors in order, repeated if there are fewer types than tensors.
        """
        return {
            name: MAKERS[sample](seed, shape).astype(dtypes[seed % len(dtypes)])
            for seed, (name, sample) in enumerate(self.tensors.items())
        }

    def arguments(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Return the keyword arguments that forward and backward have in common, except the reduction."""
        arguments = {f"{name}_hbm": tensor for name, tensor in tensors.items()}
        return {**arguments, **{f"{name}_hbm": None for name in self.absent}, **self.options}

    def backward_arguments(self, tensors: Mapping[str, Array], upstream: Array, **wanted: bool) -> dict[str, Any]:
        """Return the arguments of the backward.

        Args:
            tensors: the tensors by name.
            upstream: the upstream gradient.
            wanted: by name of a tensor, whether its gradient is wanted; without any, all are. A kernel with a single
                gradient has no such flag.
        """
        named = self.gradients if len(self.gradients) > 1 else ()
        flags = {f"grad_{name}_wanted": wanted.get(name, not wanted) for name in named}
        return {**self.arguments(tensors), "grad_loss_hbm": upstream, **flags}


ENTRIES: Final = tuple(
    ElementwiseEntry.of(loss, form) for loss in LOSSES if isinstance(loss, ElementwiseLoss) for form in loss.forms
)
"""Each loss in each of its forms; verification and tests go through all of them."""


def _tensors(entry: ElementwiseEntry, type_name: str) -> dict[str, Any]:
    return entry.made(_SIZES, (inputs.TYPES[type_name][0], np.dtype(np.float16)))


def _named(entry: ElementwiseEntry, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a launch by the names of the loss definition, expanded to all elements, as the reference
    needs.
    """
    return {name: np.broadcast_to(arguments[f"{name}_hbm"], _SIZES) for name in entry.tensors}


def _forward(entry: ElementwiseEntry, type_name: str, **options: Any) -> dict[str, Any]:
    return {**entry.arguments(_tensors(entry, type_name)), **_TILING, **options}


def _forward_references(entry: ElementwiseEntry, arguments: Mapping[str, Any]) -> References:
    if arguments["reduction"] == "none":
        return {"loss": Reference(*reference.losses(entry.reference, _named(entry, arguments), np.float32, GRANTED))}
    loss_and_bound = reference.reduced(
        entry.reference, _named(entry, arguments), arguments["reduction"], arguments["columns"], GRANTED
    )
    return {"loss": Reference(*loss_and_bound)}


def _backward(entry: ElementwiseEntry, type_name: str, reduction: str, **wanted: bool) -> dict[str, Any]:
    upstream = inputs.numbers(7, *(_SIZES if reduction == "none" else (1,))) + np.float32(3)
    arguments = entry.backward_arguments(_tensors(entry, type_name), upstream, **wanted)
    return {**arguments, **_TILING, "reduction": reduction, "inplace": not wanted}


def _backward_references(entry: ElementwiseEntry, arguments: Mapping[str, Any]) -> References:
    gradients = reference.gradients(
        entry.reference, _named(entry, arguments), arguments["grad_loss_hbm"], arguments["reduction"], GRANTED
    )
    return {
        f"grad_{name}": Reference(*gradients[name])
        for name in entry.gradients
        if arguments.get(f"grad_{name}_wanted", True)
    }


def _of_entry(entry: ElementwiseEntry, type_name: str) -> Iterator[Case]:
    forward = partial(
        Case,
        kernel=entry.forward,
        names=("loss",),
        references=partial(_forward_references, entry),
        is_quick=False,
        sizes=_SIZES,
    )
    for reduction, cores, options in (("mean", 2, {}), ("none", 1, {"dtype": nl.float32})):
        make = partial(_forward, entry, type_name, reduction=reduction, **options)
        yield forward(f"forward of {entry.name}: {reduction}, {type_name}", arguments=make, num_cores=cores)
    backward = partial(
        Case, kernel=entry.backward, references=partial(_backward_references, entry), is_quick=False, sizes=_SIZES
    )
    yield backward(
        f"backward of {entry.name}: mean, in place, {type_name}",
        arguments=partial(_backward, entry, type_name, "mean"),
        names=tuple(f"grad_{name}" for name in entry.gradients),
        num_cores=2,
        written=f"{entry.gradients[0]}_hbm",
    )
    last = entry.gradients[-1]
    yield backward(
        f"backward of {entry.name}: {last} alone, none, {type_name}",
        arguments=partial(_backward, entry, type_name, "none", **{last: True}),
        names=(f"grad_{last}",),
        num_cores=1,
    )


def _forward_backward(entry: ElementwiseEntry, type_name: str) -> dict[str, Any]:
    return {**_backward(entry, type_name, "none", **{entry.gradients[-1]: True}), "dtype": nl.float32}


def _forward_backward_references(entry: ElementwiseEntry, arguments: Mapping[str, Any]) -> References:
    return {**_forward_references(entry, arguments), **_backward_references(entry, arguments)}


def _in_one_launch(entry: ElementwiseEntry, type_name: str) -> Iterator[Case]:
    forward_backward = partial(
        Case, kernel=entry.both, references=partial(_forward_backward_references, entry), is_quick=False, sizes=_SIZES
    )
    yield forward_backward(
        f"forward-backward of {entry.name}: mean, in place, {type_name}",
        arguments=partial(_backward, entry, type_name, "mean"),
        names=("loss", *(f"grad_{name}" for name in entry.gradients)),
        num_cores=2,
        written=f"{entry.gradients[0]}_hbm",
    )
    yield forward_backward(
        f"forward-backward of {entry.name}: {entry.gradients[-1]} alone, none, {type_name}",
        arguments=partial(_forward_backward, entry, type_name),
        names=("loss", f"grad_{entry.gradients[-1]}"),
        num_cores=1,
    )


def _shared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with smaller weights: ``weight`` gets one number for each row, ``pos_weight`` one for each
    column.
    """
    parts = {"weight_hbm": (slice(None), slice(0, 1)), "pos_weight_hbm": (slice(0, 1), slice(None))}
    return {**arguments, **{name: np.ascontiguousarray(arguments[name][part]) for name, part in parts.items()}}


def _forward_of_shared(entry: ElementwiseEntry, type_name: str) -> dict[str, Any]:
    return _shared(_forward(entry, type_name, reduction="mean"))


def _backward_of_shared(entry: ElementwiseEntry, type_name: str) -> dict[str, Any]:
    return _shared(_backward(entry, type_name, "mean"))


def _of_shared_weights(entry: ElementwiseEntry, type_name: str) -> Iterator[Case]:
    of_both = partial(Case, num_cores=2, is_quick=False, sizes=_SIZES)
    yield of_both(
        f"forward of {entry.name}, of rows and of columns: mean, {type_name}",
        kernel=entry.forward,
        arguments=partial(_forward_of_shared, entry, type_name),
        names=("loss",),
        references=partial(_forward_references, entry),
    )
    yield of_both(
        f"backward of {entry.name}, of rows and of columns: mean, in place, {type_name}",
        kernel=entry.backward,
        arguments=partial(_backward_of_shared, entry, type_name),
        names=tuple(f"grad_{name}" for name in entry.gradients),
        references=partial(_backward_references, entry),
        written=f"{entry.gradients[0]}_hbm",
    )


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    for type_name in inputs.TYPES:
        for entry in ENTRIES:
            yield from _of_entry(entry, type_name)
            if entry.both is not None:
                yield from _in_one_launch(entry, type_name)
            if {"weight", "pos_weight"} <= set(entry.tensors):
                yield from _of_shared_weights(entry, type_name)
