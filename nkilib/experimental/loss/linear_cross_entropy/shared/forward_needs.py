# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a launch of the forward keeps on chip beyond loss and log-sum-exp, and what it does for each tile of logits."""

from __future__ import annotations

from dataclasses import dataclass

# Groups of tiles of logits, of which one is multiplied while the sums of the other one are taken.
GROUPS = 2


@dataclass(frozen=True)
class ForwardNeeds:
    """The options that take room or time.

    Attributes:
        bias: there is one, which may mask classes.
        class_weights: of all classes.
        softcap: the logits are capped.
        scale: z is not the logits themselves: there is a cap or a temperature.
        sums: something is summed over all classes beside the exponentials, such as a smoothed loss.
        entropy, squares, mean, argmax: results of these names are asked for.
        products: the argmax compares multiples of what stands in the tiles.
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
        """All options at once: what fits with them fits with any of them."""
        return cls(True, True, True, True, True, True, True, True, True, True)

    @property
    def keeps_exponentials(self) -> bool:
        """Exponentials are read again."""
        return self.entropy or self.squares

    @property
    def counts_classes(self) -> bool:
        """Classes that are not masked are counted."""
        return self.mean and self.bias

    @property
    def has_vector_terms(self) -> bool:
        """Vector sums over the classes."""
        return self.sums or self.entropy or self.counts_classes

    @property
    def has_exact_maxima(self) -> bool:
        """The maxima of the statistics are those of z, or times the scale, without a limit."""
        return not (self.bias or self.softcap)

    @property
    def exchanged_statistics(self) -> int:
        """Numbers of a position and a block of classes that the cores swap; the logit at the target is one."""
        of_mean = 1 + self.bias if self.mean else 0
        of_argmax = 1 + (self.scale or not self.has_exact_maxima) if self.argmax else 0
        return 3 + 2 * self.sums + self.entropy + self.squares + of_mean + of_argmax

    @property
    def further_statistics(self) -> int:
        """Numbers of a position and a block of classes that are made of them when they are combined."""
        moments = self.sums or self.entropy or self.squares or self.mean
        return 1 + self.scale + 2 * moments + 2 * (self.entropy or self.argmax)

    @property
    def group_rings(self) -> int:
        """Tiles of logits that each tile of a group has room for, float32."""
        return 1 + self.softcap + self.products + self.keeps_exponentials

    @property
    def vector_passes(self) -> int:
        """Vector's passes over a tile of logits."""
        of_entropy = 1 + self.bias if self.entropy else 0
        of_argmax = 1 + self.softcap if self.argmax else 0
        return 1 + (self.softcap and self.bias) + self.sums + self.counts_classes + of_entropy + of_argmax

    @property
    def scalar_passes(self) -> int:
        """Scalar's passes over a tile of logits."""
        return 1 + self.softcap + self.squares + (self.mean and not self.bias)

    @property
    def instructions(self) -> int:
        """Of a tile of logits beside its products, with its share of what a group takes."""
        passes = self.vector_passes + self.scalar_passes + self.products + (self.entropy and self.bias)
        return passes + (1 if self == ForwardNeeds() else 2 + self.argmax)
