# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the losses of elements, from their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.function_errors import GRANTED
from nkilib.experimental.loss.skeletons.elementwise.host import truth
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths
from nkilib.verify.kernels.elementwise_kinds import KINDS, ElementwiseKind

# Two full tiles, and what is left of the stream in two more.
_SIZES: Final = (140, 1001)
_TILING: Final = {"columns": 512, "buffers": 2}


def _tensors(kind: ElementwiseKind, type_name: str) -> dict[str, Any]:
    return kind.made(_SIZES, (inputs.TYPES[type_name][0], np.dtype(np.float16)))


def _named(kind: ElementwiseKind, given: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of the launch; weights of rows and of columns as a number for each element."""
    return {name: np.broadcast_to(given[f"{name}_hbm"], _SIZES) for name in kind.tensors}


def _forward(kind: ElementwiseKind, type_name: str, **options: Any) -> dict[str, Any]:
    return {**kind.arguments(_tensors(kind, type_name)), **_TILING, **options}


def _forward_truths(kind: ElementwiseKind, given: Mapping[str, Any]) -> Truths:
    if given["reduction"] == "none":
        return {"loss": Truth(*truth.losses(kind.truth, _named(kind, given), np.float32, GRANTED))}
    found = truth.reduced(kind.truth, _named(kind, given), given["reduction"], given["columns"], GRANTED)
    return {"loss": Truth(*found)}


def _backward(kind: ElementwiseKind, type_name: str, reduction: str, **wanted: bool) -> dict[str, Any]:
    """In place where all gradients are wanted."""
    upstream = inputs.numbers(7, *(_SIZES if reduction == "none" else (1,))) + np.float32(3)
    given = kind.backward_arguments(_tensors(kind, type_name), upstream, **wanted)
    return {**given, **_TILING, "reduction": reduction, "inplace": not wanted}


def _backward_truths(kind: ElementwiseKind, given: Mapping[str, Any]) -> Truths:
    found = truth.gradients(kind.truth, _named(kind, given), given["grad_loss_hbm"], given["reduction"], GRANTED)
    return {f"grad_{name}": Truth(*found[name]) for name in kind.gradients if given.get(f"grad_{name}_wanted", True)}


def _of_kind(kind: ElementwiseKind, type_name: str) -> Iterator[Case]:
    forward = partial(
        Case,
        kernel=kind.forward,
        results=("loss",),
        truths=partial(_forward_truths, kind),
        is_quick=False,
        sizes=_SIZES,
    )
    for reduction, cores, options in (("mean", 2, {}), ("none", 1, {"dtype": nl.float32})):
        make = partial(_forward, kind, type_name, reduction=reduction, **options)
        yield forward(f"forward of {kind.name}: {reduction}, {type_name}", arguments=make, num_cores=cores)
    backward = partial(Case, kernel=kind.backward, truths=partial(_backward_truths, kind), is_quick=False, sizes=_SIZES)
    yield backward(
        f"backward of {kind.name}: mean, in place, {type_name}",
        arguments=partial(_backward, kind, type_name, "mean"),
        results=tuple(f"grad_{name}" for name in kind.gradients),
        num_cores=2,
        written=f"{kind.gradients[0]}_hbm",
    )
    last = kind.gradients[-1]
    yield backward(
        f"backward of {kind.name}: {last} alone, none, {type_name}",
        arguments=partial(_backward, kind, type_name, "none", **{last: True}),
        results=(f"grad_{last}",),
        num_cores=1,
    )


def _both(kind: ElementwiseKind, type_name: str) -> dict[str, Any]:
    """Losses of each, and the last gradient alone."""
    return {**_backward(kind, type_name, "none", **{kind.gradients[-1]: True}), "dtype": nl.float32}


def _truths_of_both(kind: ElementwiseKind, given: Mapping[str, Any]) -> Truths:
    return {**_forward_truths(kind, given), **_backward_truths(kind, given)}


def _in_one_launch(kind: ElementwiseKind, type_name: str) -> Iterator[Case]:
    both = partial(Case, kernel=kind.both, truths=partial(_truths_of_both, kind), is_quick=False, sizes=_SIZES)
    yield both(
        f"both of {kind.name}: mean, in place, {type_name}",
        arguments=partial(_backward, kind, type_name, "mean"),
        results=("loss", *(f"grad_{name}" for name in kind.gradients)),
        num_cores=2,
        written=f"{kind.gradients[0]}_hbm",
    )
    yield both(
        f"both of {kind.name}: {kind.gradients[-1]} alone, none, {type_name}",
        arguments=partial(_both, kind, type_name),
        results=("loss", f"grad_{kind.gradients[-1]}"),
        num_cores=1,
    )


def _shared(arguments: dict[str, Any]) -> dict[str, Any]:
    """With a weight of rows, and one of columns where there are two."""
    parts = {"weight_hbm": (slice(None), slice(0, 1)), "pos_weight_hbm": (slice(0, 1), slice(None))}
    return {**arguments, **{name: np.ascontiguousarray(arguments[name][part]) for name, part in parts.items()}}


def _forward_of_shared(kind: ElementwiseKind, type_name: str) -> dict[str, Any]:
    return _shared(_forward(kind, type_name, reduction="mean"))


def _backward_of_shared(kind: ElementwiseKind, type_name: str) -> dict[str, Any]:
    return _shared(_backward(kind, type_name, "mean"))


def _of_shared_weights(kind: ElementwiseKind, type_name: str) -> Iterator[Case]:
    of_both = partial(Case, num_cores=2, is_quick=False, sizes=_SIZES)
    yield of_both(
        f"forward of {kind.name}, of rows and of columns: mean, {type_name}",
        kernel=kind.forward,
        arguments=partial(_forward_of_shared, kind, type_name),
        results=("loss",),
        truths=partial(_forward_truths, kind),
    )
    yield of_both(
        f"backward of {kind.name}, of rows and of columns: mean, in place, {type_name}",
        kernel=kind.backward,
        arguments=partial(_backward_of_shared, kind, type_name),
        results=tuple(f"grad_{name}" for name in kind.gradients),
        truths=partial(_backward_truths, kind),
        written=f"{kind.gradients[0]}_hbm",
    )


def cases() -> Iterator[Case]:
    """All of them."""
    for type_name in inputs.TYPES:
        for kind in KINDS:
            yield from _of_kind(kind, type_name)
            if kind.both is not None:
                yield from _in_one_launch(kind, type_name)
            if {"weight", "pos_weight"} <= set(kind.tensors):
                yield from _of_shared_weights(kind, type_name)
