# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Row-wise losses with certain options, from the registry of losses; verification and tests go through all of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from nkilib.core.host.loss import Form
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.rowwise.host.reference import RowwiseReference
from nkilib.experimental.loss.skeletons.rowwise.host.row import RowwiseLoss
from nkilib.verify.kernels.samples import MAKERS
from nkilib.verify.observation import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RowwiseEntry:
    """A row-wise loss with options.

    Attributes:
        name: the name of the loss and of its form.
        forward, backward: the kernels.
        reference: the float64 reference, with the same options.
        tensors: the kind of values of each tensor, by name, in the order of the kernel's arguments.
        gradients: the names of the tensors by which the backward differentiates, in its order.
        options: the options of the forward.
        of_forward: the names of tensors and options that the backward does not take.
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
        """Return the entry for a form (a choice of options) of a registered loss."""
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
        """Return tensors of a shape, by name; they take ``dtypes`` in turn, and per-row scalars are float32."""
        tensors = {name: MAKERS[sample](seed, shape) for seed, (name, sample) in enumerate(self.tensors.items())}
        types = {
            name: dtypes[at % len(dtypes)] if tensor.ndim == 2 else np.float32
            for at, (name, tensor) in enumerate(tensors.items())
        }
        return {name: np.ascontiguousarray(tensor.astype(types[name])) for name, tensor in tensors.items()}

    def arguments(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Return the arguments of the forward, except the reduction."""
        return {**{f"{name}_hbm": tensor for name, tensor in tensors.items()}, **self.options}

    def backward_arguments(self, tensors: Mapping[str, Array], upstream: Array, **wanted: bool) -> dict[str, Any]:
        """Return the arguments of the backward.

        Args:
            tensors: the tensors by name.
            upstream: the upstream gradient.
            wanted: the wanted gradients by name of the tensor, all by default.
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
"""Each loss in each of its forms."""
