# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The options of a forward beyond loss and log-sum-exp, with the memory and passes that they take."""

from __future__ import annotations

from dataclasses import dataclass

# Groups of tiles of logits: one is multiplied while the sums of the other one are computed.
GROUPS = 2


@dataclass(frozen=True)
class ForwardNeeds:
    """The options of a forward that take memory or time.

    Attributes:
        bias: whether there is a bias, which may mask classes.
        class_weights: whether the class weights of all classes are needed.
        softcap: whether the logits are capped.
        scale: whether z differs from the logits: there is a cap or a temperature.
        sums: whether something besides the exponentials is summed over all classes, such as a smoothed loss.
        entropy, squares, mean, argmax: whether the entropy, log_sum_squares, the mean logit and the argmax are
            requested.
        products: whether the argmax compares z, a multiple of the scores in the tiles, and not the scores.
    """

    bias: bool = False
    class_weights: bool = False
    softcap: bool = False
    scale: bool = False
    sums: bool = False
    entropy: bool = False
    squares: bool = False
    mean: bool = False
    argmax: bool = False
    products: bool = False

    @classmethod
    def everything(cls) -> ForwardNeeds:
        """Return all options at once: whatever fits with them fits with any of them."""
        return cls(True, True, True, True, True, True, True, True, True, True)

    @property
    def keeps_exponentials(self) -> bool:
        """Whether exponentials are read again."""
        return self.entropy or self.squares

    @property
    def counts_classes(self) -> bool:
        """Whether classes that are not masked are counted."""
        return self.mean and self.bias

    @property
    def has_vector_terms(self) -> bool:
        """Whether Vector computes sums over the classes whose single terms are not needed."""
        return self.sums or self.entropy or self.counts_classes

    @property
    def has_exact_maxima(self) -> bool:
        """Whether the maxima in the statistics, times the scale, are the maxima of z: there is no bias and no cap."""
        return not (self.bias or self.softcap)

    @property
    def exchanged_statistics(self) -> int:
        """The number of values per position and block of classes that the cores swap, the target logit included."""
        of_mean = 1 + self.bias if self.mean else 0
        of_argmax = 1 + (self.scale or not self.has_exact_maxima) if self.argmax else 0
        return 3 + 2 * self.sums + self.entropy + self.squares + of_mean + of_argmax

    @property
    def further_statistics(self) -> int:
        """The number of values per position and block of classes that are computed when statistics are combined."""
        moments = self.sums or self.entropy or self.squares or self.mean
        return 1 + self.scale + 2 * moments + 2 * (self.entropy or self.argmax)

    @property
    def group_rings(self) -> int:
        """The number of float32 tiles of logits that each tile of a group needs."""
        return 1 + self.softcap + self.products + self.keeps_exponentials

    @property
    def vector_passes(self) -> int:
        """The number of Vector's passes over a tile of logits."""
        of_entropy = 1 + self.bias if self.entropy else 0
        of_argmax = 1 + self.softcap if self.argmax else 0
        return 1 + (self.softcap and self.bias) + self.sums + self.counts_classes + of_entropy + of_argmax

    @property
    def scalar_passes(self) -> int:
        """The number of Scalar's passes over a tile of logits."""
        return 1 + self.softcap + self.squares + (self.mean and not self.bias)

    @property
    def instructions(self) -> int:
        """The number of instructions of a tile of logits besides its products, with its share of the group's."""
        passes = self.vector_passes + self.scalar_passes + self.products + (self.entropy and self.bias)
        return passes + (1 if self == ForwardNeeds() else 2 + self.argmax)
