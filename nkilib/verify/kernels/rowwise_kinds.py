"""What each loss of rows is launched with: a table that verification and tests go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import numpy as np

from nkilib.experimental import loss
from nkilib.experimental.loss.rowwise.host.truth import RowwiseTruth
from nkilib.experimental.loss.rowwise.host.truths.cosine import CosineTruth
from nkilib.experimental.loss.rowwise.host.truths.multilabel_soft_margin import MultilabelSoftMarginTruth
from nkilib.experimental.loss.rowwise.host.truths.triplet import TripletTruth
from nkilib.verify.kernels import inputs
from nkilib.verify.observation import Array

Shape = tuple[int, ...]
Makes = Callable[[int, Shape], Array]


def rows(seed: int, shape: Shape) -> Array:
    """Normal numbers."""
    return inputs.numbers(seed, *shape)


def logits(seed: int, shape: Shape) -> Array:
    """Normal numbers with a standard deviation of 6."""
    return np.float32(6.0) * inputs.numbers(seed, *shape)


def labels(seed: int, shape: Shape) -> Array:
    """In [0, 1], both ends among them."""
    found: Array = np.clip(0.5 + inputs.numbers(seed, *shape), 0.0, 1.0)
    return found


def weights(seed: int, shape: Shape) -> Array:
    """Of classes: [1, C], positive."""
    return np.abs(inputs.numbers(seed, 1, shape[1])) + np.float32(0.125)


def targets(seed: int, shape: Shape) -> Array:
    """Of rows: 1, -1, and some 0."""
    found = np.sign(inputs.numbers(seed, shape[0]))
    found[::7] = 0.0
    return found


@dataclass(frozen=True)
class RowwiseKind:
    """A loss with options.

    Attributes:
        name: of it and of what is special.
        forward, backward: kernels.
        truth: in float64, with the same options.
        tensors: by the names of the kernel's arguments, what makes each from a seed and a shape; the first one first.
        gradients: names of the tensors by which the backward differentiates, in its order.
        options: of the forward.
        of_forward: names of tensors and options that the backward does not take.
        has_coefficients: whether the forward returns some.
    """

    name: str
    forward: Any
    backward: Any
    truth: RowwiseTruth
    tensors: Mapping[str, Makes]
    gradients: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    of_forward: tuple[str, ...] = ()
    has_coefficients: bool = True

    def made(self, shape: Shape, dtypes: tuple[Any, ...] = (np.float32,)) -> dict[str, Array]:
        """Tensors of a shape, in types that repeat, by name; numbers of rows are float32."""
        found = {name: make(seed, shape) for seed, (name, make) in enumerate(self.tensors.items())}
        types = {
            name: dtypes[at % len(dtypes)] if each.ndim == 2 else np.float32
            for at, (name, each) in enumerate(found.items())
        }
        return {name: np.ascontiguousarray(each.astype(types[name])) for name, each in found.items()}

    def arguments(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Of the forward, but for the reduction."""
        return {**{f"{name}_hbm": each for name, each in tensors.items()}, **self.options}

    def backward_arguments(self, tensors: Mapping[str, Array], upstream: Array, **wanted: bool) -> dict[str, Any]:
        """Of the backward; ``wanted`` by name of the tensor, all by default."""
        given = {f"{name}_hbm": each for name, each in tensors.items() if name not in self.of_forward}
        given |= {name: value for name, value in self.options.items() if name not in self.of_forward}
        if self.has_coefficients:
            _, coefficients = self.forward(**self.arguments(tensors))
            given["coefficients_hbm"] = np.asarray(coefficients)
        flags = {f"grad_{name}_wanted": wanted.get(name, not wanted) for name in self.gradients}
        return {**given, "grad_loss_hbm": upstream, **flags}


def _triplet(name: str = "", **options: Any) -> RowwiseKind:
    return RowwiseKind(
        f"triplet_margin_loss{name}",
        loss.triplet_margin_loss_forward,
        loss.triplet_margin_loss_backward,
        TripletTruth(**options),
        dict.fromkeys(("anchor", "positive", "negative"), rows),
        ("anchor", "positive", "negative"),
        options,
        of_forward=("margin",),
    )


def _multilabel(name: str, **further: Makes) -> RowwiseKind:
    return RowwiseKind(
        f"multilabel_soft_margin_loss{name}",
        loss.multilabel_soft_margin_loss_forward,
        loss.multilabel_soft_margin_loss_backward,
        MultilabelSoftMarginTruth(has_weight="weight" in further),
        {"input": logits, "target": labels, **further},
        ("input", "target", *further),
        has_coefficients=False,
    )


KINDS: Final = (
    _triplet(),
    _triplet(", swap", swap=True, margin=2.0),
    _triplet(", p = 1", p=1.0, eps=1e-3, margin=30.0),
    _triplet(", p = infinity, swap", p=inf, swap=True),
    _triplet(", p = 3", p=3.0, margin=2.0),
    _triplet(", p = 1.5, swap", p=1.5, swap=True, margin=2.0),
    RowwiseKind(
        "cosine_embedding_loss",
        loss.cosine_embedding_loss_forward,
        loss.cosine_embedding_loss_backward,
        CosineTruth(0.01),
        {"input1": rows, "input2": rows, "target": targets},
        ("input1", "input2"),
        {"margin": 0.01},
        of_forward=("margin", "target"),
    ),
    _multilabel(""),
    _multilabel(", weighted", weight=weights),
)
"""A row for each loss, and for each of its forms."""
