# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The room on chip and the instructions that pairs of tiles of logits need, by the options of a launch.

In the first visit they are tiles of both models; in the backward they become tiles of the gradient of the student's
logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nkilib.experimental.loss.linear.backward.tile_needs import INSTRUCTIONS_OF_SUMS, TileNeeds

# Tiles of positions whose scores stand side by side if Scalar computes tangents: it loads the tables of a tangent and
# of an exponential once for a group of pairs. More where products are short.
_GROUP_OF_CAP, _GROUP_OF_SHORT = 2, 3
# Groups whose tiles are on chip at a time: one is multiplied while the sums of those before it are taken.
_SLOTS, _SLOTS_OF_CAP = 3, 2
# Products of at most this many passes of Tensor over a column of a pair of tiles are short.
_SHORT = 16
# Float32 columns of positions: those that stay, and those that they are computed from.
_COLUMNS = 14
# Tiles that an opened tile keeps: the student's scores, and the teacher's or the differences of both.
_OPENED = 2


@dataclass(frozen=True)
class ModelNeeds:
    """The options of one model that take room or time.

    Attributes:
        bias: whether there is a bias, which may mask classes.
        softcap: whether the logits are capped.
        scale: whether z differs from the scores: there is a cap, a logit scale or a temperature.
    """

    bias: bool = False
    softcap: bool = False
    scale: bool = False


@dataclass(frozen=True)
class PairNeeds:
    """The options of a launch that take room or time.

    Attributes:
        student, teacher: the options of each model.
        mixed: whether the divergence is that of a mixture: the first visit computes no differences of scores.
        reverse: whether the student's probabilities are the weights of the divergence.
        target: whether the student's scores at labels are wanted.
        ratio: whether the scores of the models have different units.
        short: whether the products of a pair of tiles take little longer than the work on them.
        sums_bias: whether the gradient of the student's bias is summed from gradients before they are rounded.
    """

    student: ModelNeeds = ModelNeeds()
    teacher: ModelNeeds = ModelNeeds()
    mixed: bool = False
    reverse: bool = False
    target: bool = False
    ratio: bool = False
    short: bool = False
    sums_bias: bool = False

    @classmethod
    def everything(cls, mixed: bool = False) -> PairNeeds:
        """Return all options at once: sizes that fit with them fit with any of them."""
        model = ModelNeeds(True, True, True)
        return cls(model, model, mixed, False, True, not mixed, sums_bias=True)

    def of_products(self, products: int) -> PairNeeds:
        """Return the options with ``short`` set for ``products`` passes of Tensor over a column of a pair of tiles."""
        return replace(self, short=self.softcap and not self.mixed and products <= _SHORT)

    @property
    def models(self) -> tuple[ModelNeeds, ModelNeeds]:
        """The options of student and teacher."""
        return self.student, self.teacher

    @property
    def softcap(self) -> bool:
        """Whether Scalar computes tangents."""
        return self.student.softcap or self.teacher.softcap

    @property
    def group_tiles(self) -> int:
        """The largest number of tiles of positions of a group."""
        if not self.softcap:
            return 1
        return _GROUP_OF_SHORT if self.short else _GROUP_OF_CAP

    @property
    def slots(self) -> int:
        """The number of groups whose tiles are on chip at a time."""
        return _SLOTS_OF_CAP if self.softcap and not self.short else _SLOTS

    @property
    def rings(self) -> int:
        """The number of float32 tiles per pair of tiles: scores and exponentials of both models, and differences."""
        return 4 + (not self.mixed)

    @property
    def exchanged_statistics(self) -> int:
        """The number of values per position and block of classes that the cores exchange."""
        return 5 + (not self.mixed) + self.target

    @property
    def further_statistics(self) -> int:
        """The number of values per position and block of classes that are computed when exchanged ones are combined."""
        return 4 + sum(model.scale for model in self.models) + 2 * (not self.mixed)

    @property
    def vector_passes(self) -> int:
        """The number of Vector's passes over a pair of tiles: two maxima, the entropy, and the weighted differences."""
        return 3 + (not self.mixed) + sum(model.bias and model.softcap for model in self.models)

    @property
    def scalar_passes(self) -> int:
        """The number of Scalar's passes over a pair of tiles: exponentials, and tangents."""
        return 2 + sum(model.softcap for model in self.models)

    @property
    def gpsimd_passes(self) -> int:
        """The number of GpSimd's passes over a pair of tiles: differences of scores, and the ratio of units if any."""
        return 0 if self.mixed else 1 + self.ratio

    @property
    def instructions(self) -> int:
        """The number of instructions of a pair of tiles besides its products, with its share of those of a group."""
        of_gap = 0 if self.mixed else 2 + 2 * self.ratio
        of_models = sum(model.scale + (model.bias or model.softcap) for model in self.models)
        return self.vector_passes + self.scalar_passes + of_gap + of_models + self.target


def opens_groups(needs: PairNeeds) -> bool:
    """Tell whether Scalar computes tangents or logs of mixtures, which need another table than exponentials."""
    return needs.mixed or needs.softcap


def copies_student(needs: PairNeeds) -> bool:
    """Tell whether the student's products are copied from PSUM in the backward.

    Vector reads one operand from there, and a bank is not kept for a tile that is opened long before it is computed.
    """
    is_plain = not needs.student.bias and not needs.student.softcap
    return is_plain and (opens_groups(needs) or (takes_differences(needs) and teacher_is_plain(needs)))


def copies_teacher(needs: PairNeeds) -> bool:
    """Tell whether the teacher's products are copied from PSUM; see :func:`copies_student`."""
    return teacher_is_plain(needs) and opens_groups(needs) and not takes_differences(needs)


def takes_differences(needs: PairNeeds) -> bool:
    """Tell whether the gradient needs the differences of both models' scores."""
    return needs.mixed or needs.reverse


def teacher_is_plain(needs: PairNeeds) -> bool:
    """Tell whether the teacher's scores are its products."""
    return not needs.teacher.bias and not needs.teacher.softcap


def spares_scores(needs: PairNeeds) -> bool:
    """Tell whether the student's scores may be in the tile that the gradient is computed in.

    Not if several pairs are opened before the first of them is computed. Nor if their differences are taken: the scores
    are then needed for longer, and the next exponentials would wait for the tile.
    """
    return not opens_groups(needs) and not takes_differences(needs)


def gradient_needs(needs: PairNeeds) -> TileNeeds:
    """Return the room and instructions that the tiles of the gradient need.

    There are ring buffers of biases, of tangents, of copies, of the differences or the teacher's exponentials, and for
    the gradient at a label.
    """
    models = sum(model.bias + model.softcap for model in needs.models)
    if needs.sums_bias and (needs.student.softcap or spares_scores(needs)):
        models -= 1  # the sums of logits and bias are in other tiles
    copies = copies_student(needs) + copies_teacher(needs)
    biases = sum(model.bias for model in needs.models) + needs.sums_bias * INSTRUCTIONS_OF_SUMS
    of_softcaps = sum(model.softcap * (1 + model.bias) for model in needs.models) + 2 * needs.student.softcap
    return TileNeeds(
        columns=_COLUMNS,
        rows=sum(model.bias for model in needs.models) + needs.sums_bias,
        rings=models + copies + 1 + needs.target,
        opened=_OPENED if opens_groups(needs) else 0,
        instructions=4 + needs.mixed + 3 * needs.target + copies + of_softcaps + biases,
    )
