# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The form of logits that are not computed: products of hidden states with weights, a scale, a cap, and a dtype.

:class:`Form` is the sum of its products (:class:`Term`), or a function of that (:class:`Kind`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nkilib.experimental.loss.cross_entropy.launch import OPTION_MAX, SOFTCAP_MIN
from nkilib.experimental.loss.linear.launch import LOGIT_SCALE_MAX, LOGIT_SCALE_MIN

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Kind(Enum):
    """Logits z, or a function of them and of p = softmax(z)."""

    LOGITS = "z"
    LOG_SOFTMAX = "log p"
    SOFTMAX = "p"
    P_LOG_P = "p log p"
    P_Z = "p z"


class Placed(Enum):
    """The kind of tensor that the computed logits are, which depends on the ranks that share the output layer."""

    TENSOR = "a tensor with all classes"
    SPREAD = "a DTensor whose classes are sharded"
    REPLICATED = "a DTensor that every rank has whole"


@dataclass(frozen=True, eq=False)
class Term:
    """A product of hidden states with the weight of a layer, and a bias.

    Attributes:
        hidden: the hidden states, with their features in the place of the classes of the logits.
        layer: the layer, a ``torch.nn.Linear``.
        parameters: views of its weight and of its bias, if it has one. What looks for the graph that an output depends
            on, as DistributedDataParallel does, finds it here.
        factor: multiplies the product, if it is one of a sum.
        mesh: the ranks over which the classes of the layer are spread; None: this rank has all of them.
    """

    hidden: Tensor
    layer: nn.Linear
    parameters: tuple[Tensor, ...]
    factor: float = 1.0
    mesh: DeviceMesh | None = None


def _near(number: float) -> float:
    """Return the number, or 1 where rounding alone keeps it from that, as in c * tanh(x / c)."""
    return 1.0 if abs(number - 1.0) < 1e-12 else number


@dataclass(frozen=True, eq=False)
class Form:
    """Logits z = softcap(scale * x) of x, the sum of the terms, or a function of them and of p = softmax(z).

    Attributes:
        terms: the products whose sum x is.
        class_dim: the dimension of the classes, counted from 0.
        classes: the classes that were not cut off are those below this number.
        scale: multiplies x.
        cap: None for z = scale * x; else z = cap * tanh(scale / cap * x), as ``logit_softcap`` of
            :func:`nkilib.torch.linear_cross_entropy`; 1 / scale if tanh was the last function so far.
        dtype: the dtype that the computed logits have.
        kind: the function of the logits over the classes.
        factor: multiplies that function; 1 for the logits themselves.
        is_detached: whether no gradient flows back from it.
        placed: the kind of tensor that the computed logits are. The shape is that of all classes, and the hidden
            states are no DTensor.
    """

    terms: tuple[Term, ...]
    class_dim: int
    classes: int
    dtype: torch.dtype
    scale: float = 1.0
    cap: float | None = None
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
        """The hidden states of the first term."""
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
        """The number of features of all terms."""
        return sum(term.hidden.shape[self.class_dim] for term in self.terms)

    @property
    def is_last(self) -> bool:
        """Whether the classes are the last dimension."""
        return self.class_dim == self.ndim - 1

    def mapped(self, function: Callable[[Tensor], Tensor], class_dim: int | None = None) -> Form:
        """Return the form with a function applied to the hidden states of each term."""
        terms = tuple(replace(term, hidden=function(term.hidden)) for term in self.terms)
        return replace(self, terms=terms, class_dim=self.class_dim if class_dim is None else class_dim)

    def scaled(self, factor: float) -> Form | None:
        """Return the form multiplied by a number; None if no kernel takes the product."""
        if self.kind is not Kind.LOGITS:
            return replace(self, factor=self.factor * factor)
        scale = _near(self.scale * factor)
        cap = None if self.cap is None else self.cap * factor
        if not LOGIT_SCALE_MIN <= scale <= LOGIT_SCALE_MAX:
            return None
        if cap is not None and not SOFTCAP_MIN <= cap <= OPTION_MAX:
            return None
        return replace(self, scale=scale, cap=cap)

    def is_alike(self, other: Form) -> bool:
        """Return whether the two differ in nothing but their hidden states, and may be joined along positions."""
        mine, theirs = ([(term.layer, term.factor) for term in form.terms] for form in (self, other))
        return mine == theirs and replace(self, terms=()).__dict__ == replace(other, terms=()).__dict__

    def is_same(self, other: Form) -> bool:
        """Return whether the two are one form of the same hidden states."""
        pairs = zip(self.terms, other.terms, strict=False)
        return self.is_alike(other) and all(mine.hidden is theirs.hidden for mine, theirs in pairs)
