# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Elementwise losses with certain options, from the registry of losses; verification and tests go through all of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from nkilib.core.host.loss import Form, tensors_of
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.elementwise.host.reference import ElementwiseReference
from nkilib.experimental.loss.skeletons.elementwise.host.row import ElementwiseLoss
from nkilib.verify.kernels.samples import MAKERS
from nkilib.verify.observation import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ElementwiseEntry:
    """An elementwise loss with options.

    Attributes:
        name: the name of the loss and of its form.
        forward, backward: the kernels.
        reference: the float64 reference, with the same options.
        tensors: the kind of values of each tensor, by the names of the loss definition, in the order of the kernel's
            arguments.
        gradients: the names of the tensors by which the backward differentiates, in its order.
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
        """Return the entry for a form (a choice of options) of a registered loss."""
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
        """Return tensors of a shape, by the names of the loss definition; they take ``dtypes`` in turn."""
        return {
            name: MAKERS[sample](seed, shape).astype(dtypes[seed % len(dtypes)])
            for seed, (name, sample) in enumerate(self.tensors.items())
        }

    def arguments(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Return the arguments of either kernel, except the reduction."""
        arguments = {f"{name}_hbm": tensor for name, tensor in tensors.items()}
        return {**arguments, **{f"{name}_hbm": None for name in self.absent}, **self.options}

    def backward_arguments(self, tensors: Mapping[str, Array], upstream: Array, **wanted: bool) -> dict[str, Any]:
        """Return the arguments of the backward.

        Args:
            tensors: the tensors by name.
            upstream: the upstream gradient.
            wanted: the wanted gradients by name of the tensor, all by default. A single gradient has no flag.
        """
        named = self.gradients if len(self.gradients) > 1 else ()
        flags = {f"grad_{name}_wanted": wanted.get(name, not wanted) for name in named}
        return {**self.arguments(tensors), "grad_loss_hbm": upstream, **flags}


ENTRIES: Final = tuple(
    ElementwiseEntry.of(loss, form) for loss in LOSSES if isinstance(loss, ElementwiseLoss) for form in loss.forms
)
"""Each loss in each of its forms."""
