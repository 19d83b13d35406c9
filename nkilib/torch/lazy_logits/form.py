# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The description of logits that are not computed: products of hidden states with weights, a scale, a cap, temperatures
and a dtype.

A *form* (:class:`Form`) describes the sum of its products (:class:`Term`), or a function of this sum (:class:`Kind`).
:class:`Placed` is the kind of tensor that the computed logits would be on the ranks of a mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from nkilib.experimental.loss.cross_entropy.launch import (
    OPTION_MAX,
    SOFTCAP_MIN,
    TEMPERATURE_MAX,
    TEMPERATURE_MIN,
)
from nkilib.experimental.loss.linear.launch import LOGIT_SCALE_MAX, LOGIT_SCALE_MIN
from nkilib.torch.dispatch.memory import is_traced

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Kind(Enum):
    """The function of the logits z over the classes that a form describes: z itself, or a function of z and p =
    softmax(z).
    """

    LOGITS = "z"
    LOG_SOFTMAX = "log p"
    SOFTMAX = "p"
    P_LOG_P = "p log p"
    P_Z = "p z"


class Placed(Enum):
    """The tensor that the logits would be if they were computed: a plain one, or a DTensor and its placement."""

    TENSOR = "a tensor with all classes"
    SPREAD = "a DTensor whose classes are sharded"
    REPLICATED = "a DTensor that every rank has whole"


@dataclass(frozen=True, eq=False)
class Term:
    """A product of hidden states with the weight of a layer, plus its bias.

    Attributes:
        hidden: the hidden states, with the features in the dimension that has the classes in the logits.
        layer: the layer, a ``torch.nn.Linear``.
        parameters: views of the layer's weight and, if there is one, the layer's bias. Code that follows the graph of
            an output, such as DistributedDataParallel, finds the parameters here.
        factor: multiplies the product, if the form is a sum of products.
        mesh: the ranks over which the classes of the layer are spread; None: this rank has all of them.
    """

    hidden: Tensor
    layer: nn.Linear
    parameters: tuple[Tensor, ...]
    factor: float = 1.0
    mesh: DeviceMesh | None = None


def _near(number: float) -> float:
    """Return the number, or exactly 1 if it differs from 1 only by rounding.

    The form of c * tanh(x / c) has the scale (1 / c) * c, which may be rounded.
    """
    return 1.0 if abs(number - 1.0) < 1e-12 else number


@dataclass(frozen=True, eq=False)
class Form:
    """The description of logits z = softcap(scale * x) / temperatures, or of a function of z and p = softmax(z).

    Attributes:
        terms: the products of hidden states and weights whose sum is x.
        class_dim: the dimension of the classes, counted from 0.
        classes: the number of classes of the logits, which are the first classes of the layer.
        scale: multiplies x.
        cap: None for z = scale * x; else z = cap * tanh(scale / cap * x), as ``logit_softcap`` of
            :func:`nkilib.torch.linear_cross_entropy`. A tanh sets the cap to 1, and a later factor multiplies it.
        temperatures: None, or a float32 tensor without gradient: of no dimensions, or of the shape of the logits with
            one class, for a temperature of each position.
        dtype: the dtype that the computed logits have.
        kind: the function of the logits over the classes.
        factor: multiplies the function; 1 for the logits themselves.
        is_detached: whether no gradient flows back from the logits.
        placed: the kind of tensor that the computed logits would be. Even for a DTensor, ``classes`` counts the classes
            of all ranks, and the hidden states are plain tensors.
    """

    terms: tuple[Term, ...]
    class_dim: int
    classes: int
    dtype: torch.dtype
    scale: float = 1.0
    cap: float | None = None
    temperatures: Tensor | None = None
    kind: Kind = Kind.LOGITS
    factor: float = 1.0
    is_detached: bool = False
    placed: Placed = Placed.TENSOR

    @property
    def mesh(self) -> DeviceMesh | None:
        """The ranks over which the classes are spread; None: every rank has all of them."""
        return self.terms[0].mesh

    @property
    def hidden(self) -> Tensor:
        """The hidden states of the form's first term; all terms have the same positions."""
        return self.terms[0].hidden

    @property
    def shape(self) -> torch.Size:
        """The shape of the logits."""
        sizes = list(self.hidden.shape)
        sizes[self.class_dim] = self.classes
        return torch.Size(sizes)

    @property
    def ndim(self) -> int:
        """The number of dimensions of the logits."""
        return self.hidden.dim()

    @property
    def num_features(self) -> int:
        """The number of features of all terms together."""
        return sum(term.hidden.shape[self.class_dim] for term in self.terms)

    @property
    def is_last(self) -> bool:
        """Whether the dimension of the classes is the last one."""
        return self.class_dim == self.ndim - 1

    @property
    def has_own_temperatures(self) -> bool:
        """Whether each position has its own temperature."""
        return self.temperatures is not None and self.temperatures.dim() > 0

    def mapped(self, function: Callable[[Tensor], Tensor], class_dim: int | None = None) -> Form:
        """Return the form of logits whose positions a function selects or moves.

        Args:
            function: a view or selection along the positions; it is applied to the hidden states of each term, and to
                temperatures if each position has its own.
            class_dim: the dimension of the classes in the result; None if it does not change.
        """
        terms = tuple(replace(term, hidden=function(term.hidden)) for term in self.terms)
        temperatures = self.temperatures
        if temperatures is not None and self.has_own_temperatures:
            temperatures = function(temperatures)
        class_dim = self.class_dim if class_dim is None else class_dim
        return replace(self, terms=terms, temperatures=temperatures, class_dim=class_dim)

    def scaled(self, factor: float) -> Form | None:
        """Return the form of the same logits, or function of logits, times a number; None if the scale or cap leaves
        the kernels' range.
        """
        if self.kind is not Kind.LOGITS:
            return replace(self, factor=self.factor * factor)
        scale = _near(self.scale * factor)
        cap = None if self.cap is None else self.cap * factor
        if not LOGIT_SCALE_MIN <= scale <= LOGIT_SCALE_MAX:
            return None
        if cap is not None and not SOFTCAP_MIN <= cap <= OPTION_MAX:
            return None
        return replace(self, scale=scale, cap=cap)

    def divided(self, temperatures: Tensor) -> Form | None:
        """Return the form of the same logits divided by temperatures; None if no kernel computes the quotient.

        On the CPU this reads the temperatures, except in a traced graph, where the kernel raises an error for a value
        out of range. On devices such a value makes the results of its position NaN.

        Args:
            temperatures: a float32 tensor in one of the shapes that :class:`Form` allows.
        """
        if self.kind is not Kind.LOGITS:
            return None
        if self.temperatures is not None:
            temperatures = self.temperatures * temperatures
        if temperatures.device.type == "cpu" and not is_traced(temperatures):
            is_known = (temperatures >= TEMPERATURE_MIN) & (temperatures <= TEMPERATURE_MAX)  # NaN is in no range
            if not bool(is_known.all()):
                return None
        return replace(self, temperatures=temperatures)

    def temperature_of_positions(self) -> float | Tensor:
        """Return the temperatures as the argument ``temperature`` of nkilib's functions: the number 1, a tensor without
        dimensions, or a tensor of the shape of the positions.
        """
        if self.temperatures is None:
            return 1.0
        return self.temperatures.squeeze(self.class_dim) if self.temperatures.dim() else self.temperatures

    def spread_temperatures(self) -> Tensor:
        """Return the temperatures, which must not be None, expanded to the shape of the logits with one class."""
        sizes = list(self.shape)
        sizes[self.class_dim] = 1
        return cast(Tensor, self.temperatures).expand(sizes)

    def is_alike(self, other: Form) -> bool:
        """Return whether two forms differ only in hidden states and in the values of temperatures.

        Such forms can be joined along positions, as by ``torch.cat``.
        """
        mine, theirs = ([(term.layer, term.factor) for term in form.terms] for form in (self, other))
        rest, of_other = (replace(form, terms=(), temperatures=None).__dict__ for form in (self, other))
        return mine == theirs and rest == of_other and (self.temperatures is None) == (other.temperatures is None)

    def is_same(self, other: Form) -> bool:
        """Return whether two forms describe the same values, from the same tensors of hidden states and
        temperatures.
        """
        pairs = zip(self.terms, other.terms, strict=False)
        is_of_both = self.is_alike(other) and self.temperatures is other.temperatures
        return is_of_both and all(mine.hidden is theirs.hidden for mine, theirs in pairs)
