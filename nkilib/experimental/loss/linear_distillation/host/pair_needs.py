"""What the first visit keeps on chip and does for each pair of tiles of logits, by the options of a launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Tiles of positions whose scores stand side by side where Scalar takes tangents: it loads the tables of a tangent and
# of an exponential once for a group of pairs. More where products are short.
_GROUP_OF_CAP, _GROUP_OF_SHORT = 2, 3
# Groups whose tiles are on chip at a time: one is multiplied while the sums of those before it are taken.
_TURNS, _TURNS_OF_CAP = 3, 2
# Products of so many passes of Tensor over a column of a pair of tiles are short.
_SHORT = 16


@dataclass(frozen=True)
class ModelNeeds:
    """The options of one model that take room or time.

    Attributes:
        bias: there is one, which may mask classes.
        softcap: its logits are capped.
        scale: z is not the scores themselves: there is a cap, a logit scale or a temperature.
    """

    bias: bool = False
    softcap: bool = False
    scale: bool = False


@dataclass(frozen=True)
class PairNeeds:
    """The options of a launch that take room or time.

    Attributes:
        student, teacher: of each model.
        mixed: the divergence is that of a mixture: the first visit takes no differences.
        reverse: the student's probabilities are the weights of the divergence.
        target: the student's scores at labels are asked for.
        ratio: scores of both models have unlike units.
        short: the products of a pair of tiles take little longer than what follows them.
    """

    student: ModelNeeds = ModelNeeds()
    teacher: ModelNeeds = ModelNeeds()
    mixed: bool = False
    reverse: bool = False
    target: bool = False
    ratio: bool = False
    short: bool = False

    @classmethod
    def everything(cls, mixed: bool = False) -> PairNeeds:
        """All options at once: what fits with them fits with any of them."""
        model = ModelNeeds(True, True, True)
        return cls(model, model, mixed, False, True, not mixed)

    def of_products(self, products: int) -> PairNeeds:
        """The same for products of so many passes of Tensor over a column of a pair of tiles."""
        return replace(self, short=self.softcap and not self.mixed and products <= _SHORT)

    @property
    def models(self) -> tuple[ModelNeeds, ModelNeeds]:
        """Student and teacher."""
        return self.student, self.teacher

    @property
    def softcap(self) -> bool:
        """Scalar takes tangents."""
        return self.student.softcap or self.teacher.softcap

    @property
    def group_tiles(self) -> int:
        """Tiles of positions of a group, at most."""
        if not self.softcap:
            return 1
        return _GROUP_OF_SHORT if self.short else _GROUP_OF_CAP

    @property
    def turns(self) -> int:
        """Groups whose tiles are on chip at a time."""
        return _TURNS_OF_CAP if self.softcap and not self.short else _TURNS

    @property
    def rings(self) -> int:
        """Tiles of float32 that a pair of tiles takes: scores and exponentials of both, and their differences."""
        return 4 + (not self.mixed)

    @property
    def exchanged_statistics(self) -> int:
        """Numbers of a position and a block of classes that the cores swap."""
        return 5 + (not self.mixed) + self.target

    @property
    def further_statistics(self) -> int:
        """Numbers of a position and a block of classes that are made of them when they are combined."""
        return 4 + sum(model.scale for model in self.models) + 2 * (not self.mixed)

    @property
    def vector_passes(self) -> int:
        """Vector's passes over a pair of tiles: two maxima, the entropy, and the weighted differences."""
        return 3 + (not self.mixed) + sum(model.bias and model.softcap for model in self.models)

    @property
    def scalar_passes(self) -> int:
        """Scalar's passes over a pair of tiles: exponentials, and tangents."""
        return 2 + sum(model.softcap for model in self.models)

    @property
    def gpsimd_passes(self) -> int:
        """GpSimd's passes over a pair of tiles, of two elements each; the search for a label is half a one."""
        return 0 if self.mixed else 1 + self.ratio

    @property
    def instructions(self) -> int:
        """Instructions of a pair of tiles beside its products, with its share of those of a group."""
        of_gap = 0 if self.mixed else 2 + 2 * self.ratio
        of_models = sum(model.scale + (model.bias or model.softcap) for model in self.models)
        return self.vector_passes + self.scalar_passes + of_gap + of_models + self.target
