# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What each loss of elements is launched with: the forms of the registry, which verification and tests go through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from nkilib.core.host.loss import Form, tensors_of
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.elementwise.host.row import ElementwiseLoss
from nkilib.experimental.loss.skeletons.elementwise.host.truth import ElementwiseTruth
from nkilib.verify.kernels.samples import MAKERS
from nkilib.verify.observation import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ElementwiseKind:
    """A loss with options.

    Attributes:
        name: of it and of what is special.
        forward, backward: kernels.
        truth: in float64, with the same options.
        tensors: what they are like, by the names of the kind; the first one first.
        gradients: names of the tensors by which the backward differentiates, in its order.
        options: of both kernels.
        absent: optional tensors that are None.
        both: the kernel that gives losses and gradients in one launch; None: there is none.
    """

    name: str
    forward: Any
    backward: Any
    truth: ElementwiseTruth
    tensors: Mapping[str, Sample]
    gradients: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    both: Any = None

    @classmethod
    def of(cls, loss: ElementwiseLoss, form: Form) -> ElementwiseKind:
        """A form of a loss, from its row."""
        return cls(
            f"{loss.name}{form.label}",
            loss.forward,
            loss.backward,
            form.truth,
            form.samples,
            tuple(name for name in loss.differentiated if name in form.samples),
            form.options,
            tuple(name for name in tensors_of(loss.forward) if name not in form.samples),
            loss.both,
        )

    def made(self, shape: Shape, dtypes: tuple[Any, ...] = (np.float32,)) -> dict[str, Array]:
        """Tensors of a shape, in types that repeat, by the names of the kind."""
        return {
            name: MAKERS[sample](seed, shape).astype(dtypes[seed % len(dtypes)])
            for seed, (name, sample) in enumerate(self.tensors.items())
        }

    def arguments(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Of either kernel, but for the reduction."""
        given = {f"{name}_hbm": each for name, each in tensors.items()}
        return {**given, **{f"{name}_hbm": None for name in self.absent}, **self.options}

    def backward_arguments(self, tensors: Mapping[str, Array], upstream: Array, **wanted: bool) -> dict[str, Any]:
        """Of the backward; ``wanted`` by name of the tensor, all by default. The only gradient has no flag."""
        named = self.gradients if len(self.gradients) > 1 else ()
        flags = {f"grad_{name}_wanted": wanted.get(name, not wanted) for name in named}
        return {**self.arguments(tensors), "grad_loss_hbm": upstream, **flags}


KINDS: Final = tuple(
    ElementwiseKind.of(loss, form) for loss in LOSSES if isinstance(loss, ElementwiseLoss) for form in loss.forms
)
"""Each loss in each of its forms."""
