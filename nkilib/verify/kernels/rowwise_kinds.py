# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What each loss of rows is launched with: the forms of the registry, which verification and tests go through."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from nkilib.core.host.loss import Form
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.rowwise.host.row import RowwiseLoss
from nkilib.experimental.loss.skeletons.rowwise.host.truth import RowwiseTruth
from nkilib.verify.kernels.samples import MAKERS
from nkilib.verify.observation import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RowwiseKind:
    """A loss with options.

    Attributes:
        name: of it and of what is special.
        forward, backward: kernels.
        truth: in float64, with the same options.
        tensors: what they are like, by the names of the kernel's arguments; the first one first.
        gradients: names of the tensors by which the backward differentiates, in its order.
        options: of the forward.
        of_forward: names of tensors and options that the backward does not take.
        has_coefficients: whether the forward returns some.
    """

    name: str
    forward: Any
    backward: Any
    truth: RowwiseTruth
    tensors: Mapping[str, Sample]
    gradients: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    of_forward: tuple[str, ...] = ()
    has_coefficients: bool = True

    @classmethod
    def of(cls, loss: RowwiseLoss, form: Form) -> RowwiseKind:
        """A form of a loss, from its row."""
        forward, backward = (inspect.signature(kernel).parameters for kernel in (loss.forward, loss.backward))
        return cls(
            f"{loss.name}{form.label}",
            loss.forward,
            loss.backward,
            form.truth,
            form.samples,
            tuple(name for name in loss.differentiated if name in form.samples),
            form.options,
            of_forward=tuple(name.removesuffix("_hbm") for name in forward if name not in backward),
            has_coefficients="coefficients_hbm" in backward,
        )

    def made(self, shape: Shape, dtypes: tuple[Any, ...] = (np.float32,)) -> dict[str, Array]:
        """Tensors of a shape, in types that repeat, by name; numbers of rows are float32."""
        found = {name: MAKERS[sample](seed, shape) for seed, (name, sample) in enumerate(self.tensors.items())}
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


KINDS: Final = tuple(
    RowwiseKind.of(loss, form) for loss in LOSSES if isinstance(loss, RowwiseLoss) for form in loss.forms
)
"""Each loss in each of its forms."""
