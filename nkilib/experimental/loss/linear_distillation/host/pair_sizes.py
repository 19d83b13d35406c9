# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The needs of a launch of two models: bytes of SBUF, instructions, and modelled time.

N positions, D features, V classes; X and W are input and weight of a model; a *tile* is 128 positions or features.
*Scores* are the logits before scaling, or tanh(logit / cap) under a softcap; z is the logit after cap and temperature.
A *pair* is one tile of scores of student and teacher; a *group* is the pairs that are processed together; a tile is
*opened* (begun) before its gradient is computed.

:class:`PairNeeds` counts the tiles and instructions that a pair needs, given the options of a launch: for the first
pass over the classes, and for the backward, which computes a tile of the student's gradient from each pair
(:func:`gradient_needs`; functions such as :func:`copies_student` serve the backward too).

:class:`PairForwardSizes` has the sizes of a forward, from which its tiling is chosen, and :class:`StreamSizes` the
sizes of one model. W^T of both models streams in the same blocks of classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_instructions, limits_in_force
from nkilib.experimental.loss.linear.backward.geometry import SUM_INSTRUCTIONS, TileNeeds
from nkilib.experimental.loss.linear.block_schedule import WINDOW, PositionSplit, looped_positions, unrolled_positions
from nkilib.experimental.loss.linear.launch import STAGED_ELEMENTS
from nkilib.experimental.loss.linear.tiling import (
    CLASS_BLOCKS,
    SHARED_BLOCKS_MAX,
    SwapTimes,
    shared_by_override,
    shared_classes,
)

# Tiles of positions whose scores stand side by side if Scalar computes tangents: it loads the tables of a tangent and
# of an exponential once for a group of pairs. More where products are short.
_CAPPED_GROUP, _SHORT_GROUP = 2, 3
# Groups whose tiles are on chip at a time: one is multiplied while the sums of those before it are taken.
_SLOTS, _CAPPED_SLOTS = 3, 2
# Products of at most this many passes of Tensor over a column of a pair of tiles are short.
_SHORT_PASSES = 16
# Float32 columns of positions: those that stay, and those that they are computed from.
_COLUMNS = 14
# The same of temperatures of positions: the scales and slopes that stay, and those that they are computed from.
_TEMPERATURE_COLUMNS = 12
# Tiles that an opened tile keeps: the student's scores, and the teacher's or the differences of both.
_OPENED_TILES = 2

# Tiles of a ring buffer without a softcap.
_UNCAPPED_RING_TILES = 3
# Numbers of a position besides its statistics: per-row scalars and the operands of results; and more with labels.
_POSITION_NUMBERS, _LABEL_NUMBERS = 48, 16
# Numbers of a position of which its scales are made.
TEMPERATURE_NUMBERS = 12
# Bytes of a partition for tiles that do not depend on the tiling, with room for alignment.
_SMALL_BYTES = 3072
# Times that determine how many classes the cores share.
_SWAP = SwapTimes(6.0, 2.3)
# Instructions of a core's program for up to this many positions, and for more.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 27_000, 54_000
# Instructions of a block of classes besides those of its pairs; of a staged tile: a transfer and a cast.
_BLOCK_INSTRUCTIONS, _STAGED_INSTRUCTIONS = 30, 2
# Rates of trn2 as modelled (docs/explanation/performance_model.md): Tensor takes a column per cycle, DMA transposes at
# 90%.
_COLUMNS_PER_US = 2400.0
_BYTES_PER_US = 331_000.0
# A pass over a tile: Vector and Scalar take a column per cycle, GpSimd takes two cycles; the gap between two
# instructions, in columns; the load of a table.
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _GPSIMD_COLUMNS_PER_US = 960.0, 1200.0, 600.0
_GAP_COLUMNS, _TABLE_US = 80.0, 1.28
# A loop's start and end; the edge of an iteration; the fixed time of a block of classes, and of a block of positions.
_LOOP_US, _ITERATION_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.3, 20.0


@dataclass(frozen=True)
class ModelNeeds:
    """The options of one model that take memory or time.

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
    """The options of a launch that take memory or time.

    Attributes:
        student, teacher: the options of each model.
        mixed: whether the divergence is from a mixture: then the first pass computes no differences of scores.
        reverse: whether the divergence is weighted by the student's probabilities: KL(student || teacher).
        target: whether the student's scores at labels are wanted.
        ratio: whether the teacher's scores must be converted to the unit of the student's, because logit scales or
            softcaps differ.
        short: whether the products of a pair take little longer than the work of the other engines on the pair.
        sums_bias: whether the gradient of the student's bias is summed from gradients before they are rounded.
        temperatures: whether each position has a temperature.
    """

    student: ModelNeeds = ModelNeeds()
    teacher: ModelNeeds = ModelNeeds()
    mixed: bool = False
    reverse: bool = False
    target: bool = False
    ratio: bool = False
    short: bool = False
    sums_bias: bool = False
    temperatures: bool = False

    @classmethod
    def everything(cls, mixed: bool = False) -> PairNeeds:
        """Return all options at once: a tiling that fits with all of them fits with any of them.

        The divergence is from a mixture if ``mixed``, else a Kullback-Leibler divergence.
        """
        model = ModelNeeds(True, True, True)
        return cls(model, model, mixed, False, True, not mixed, sums_bias=True, temperatures=True)

    def of_products(self, products: int) -> PairNeeds:
        """Return the options with :attr:`short` set, from ``products``, Tensor's passes over a column of a pair.

        ``short`` is True if there is a softcap and the passes are few.
        """
        return replace(self, short=self.softcap and not self.mixed and products <= _SHORT_PASSES)

    @property
    def models(self) -> tuple[ModelNeeds, ModelNeeds]:
        """The options of student and teacher."""
        return self.student, self.teacher

    @property
    def softcap(self) -> bool:
        """Whether Scalar computes tanh for a softcap of either model."""
        return self.student.softcap or self.teacher.softcap

    @property
    def group_tiles(self) -> int:
        """The largest number of tiles of positions of a group."""
        if not self.softcap:
            return 1
        return _SHORT_GROUP if self.short else _CAPPED_GROUP

    @property
    def slots(self) -> int:
        """The number of groups that are on chip at the same time."""
        return _CAPPED_SLOTS if self.softcap and not self.short else _SLOTS

    @property
    def rings(self) -> int:
        """The number of float32 buffers for each pair: scores and exponentials of both models, and differences."""
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
        """The number of Vector's passes over a pair.

        They compute two maxima, the entropy, the weighted differences, and the masked scores of each model that has
        both a bias and a softcap.
        """
        return 3 + (not self.mixed) + sum(model.bias and model.softcap for model in self.models)

    @property
    def scalar_passes(self) -> int:
        """The number of Scalar's passes over a pair: exponentials, and tangents."""
        return 2 + sum(model.softcap for model in self.models)

    @property
    def gpsimd_passes(self) -> int:
        """The number of GpSimd's passes over a pair: differences of scores, and the ratio of units if any."""
        return 0 if self.mixed else 1 + self.ratio

    @property
    def instructions(self) -> int:
        """The number of instructions for a pair besides its products, including its part of the instructions for a
        group.
        """
        of_gap = 0 if self.mixed else 2 + 2 * self.ratio
        of_models = sum(model.scale + (model.bias or model.softcap) for model in self.models)
        return self.vector_passes + self.scalar_passes + of_gap + of_models + self.target


def opens_groups(needs: PairNeeds) -> bool:
    """Return whether a group of tiles is opened before the gradient of the first of them is computed.

    This is so if Scalar computes tanh or softplus, which need another table than exp.
    """
    return needs.mixed or needs.softcap


def takes_differences(needs: PairNeeds) -> bool:
    """Return whether the gradient needs the differences of both models' scores.

    Only the gradient of KL(teacher || student) does not.
    """
    return needs.mixed or needs.reverse


def teacher_is_plain(needs: PairNeeds) -> bool:
    """Return whether the teacher's scores are its products alone, without bias and softcap."""
    return not needs.teacher.bias and not needs.teacher.softcap


def copies_student(needs: PairNeeds) -> bool:
    """Return whether the backward copies the student's products from PSUM.

    It copies only products without bias and softcap: if Vector would need two operands from PSUM, or if groups of tiles
    are opened, because a bank is not kept until the last tile of a group is computed.
    """
    is_plain = not needs.student.bias and not needs.student.softcap
    return is_plain and (opens_groups(needs) or (takes_differences(needs) and teacher_is_plain(needs)))


def copies_teacher(needs: PairNeeds) -> bool:
    """Return whether the backward copies the teacher's products from PSUM; see :func:`copies_student`."""
    return teacher_is_plain(needs) and opens_groups(needs) and not takes_differences(needs)


def spares_scores(needs: PairNeeds) -> bool:
    """Return whether the student's scores may be stored in the tile in which the gradient is computed later.

    They may not if groups of tiles are opened, or if differences of scores are needed.
    """
    return not opens_groups(needs) and not takes_differences(needs)


def gradient_needs(needs: PairNeeds) -> TileNeeds:
    """Return the memory and instructions that the tiles of the gradient of the logits need.

    Ring buffers hold: the scores of each model with a bias, the tanh of each model with a softcap, each copy of
    products, the differences of scores or else the teacher's exponentials, and the gradient at labels.
    """
    models = sum(model.bias + model.softcap for model in needs.models)
    if needs.sums_bias and (needs.student.softcap or spares_scores(needs)):
        models -= 1  # the sums of logits and bias are in other tiles
    copies = copies_student(needs) + copies_teacher(needs)
    biases = sum(model.bias for model in needs.models) + needs.sums_bias * SUM_INSTRUCTIONS
    of_softcaps = sum(model.softcap * (1 + model.bias) for model in needs.models) + 2 * needs.student.softcap
    return TileNeeds(
        columns=_COLUMNS + needs.temperatures * _TEMPERATURE_COLUMNS,
        rows=sum(model.bias for model in needs.models) + needs.sums_bias,
        rings=models + copies + 1 + needs.target,
        opened=_OPENED_TILES if opens_groups(needs) else 0,
        instructions=4 + needs.mixed + 3 * needs.target + copies + of_softcaps + biases,
    )


@dataclass(frozen=True)
class StreamSizes:
    """The sizes of one model's operands.

    Attributes:
        num_features: D.
        itemsize: the bytes of an element of X and W on chip.
        weight_itemsize: the bytes of an element of W in HBM if W is cast while it is loaded; else 0.
        staging_bytes: the bytes of a partition for operands that are transposed and then cast.
    """

    num_features: int
    itemsize: int
    weight_itemsize: int = 0
    staging_bytes: int = 0

    @property
    def depth(self) -> int:
        """The number of tiles of features."""
        return div_ceil(self.num_features, PARTITIONS)

    @property
    def products(self) -> int:
        """The number of Tensor's passes over a column of a tile: one for each tile of features, or four if operands are
        float32.
        """
        return self.depth * (4 if self.itemsize == 4 else 1)

    @property
    def chip_bytes(self) -> int:
        """The bytes per partition of SBUF that one column of X^T takes; a column of W^T takes as many."""
        return self.depth * self.itemsize

    @property
    def loaded_bytes(self) -> int:
        """The bytes that DMA moves for a class of W."""
        return self.depth * PARTITIONS * (self.weight_itemsize or self.itemsize)


@dataclass(frozen=True)
class PairForwardSizes:
    """The sizes and options of a launch of the forward.

    Attributes:
        num_positions, vocab_size: N and V.
        student, teacher: the operands of each model.
        cores: the number of cores of the launch.
        needs: the options of the launch.
        program_share: the fraction of a program's allowed instructions that the forward may use.
    """

    num_positions: int
    vocab_size: int
    student: StreamSizes
    teacher: StreamSizes
    cores: int
    needs: PairNeeds = field(default_factory=PairNeeds)
    program_share: float = 1.0

    @property
    def products(self) -> int:
        """The number of Tensor's passes over a column of a pair."""
        return self.student.products + self.teacher.products

    @property
    def loaded_bytes(self) -> int:
        """The bytes that DMA moves for a class of the weights of both models."""
        return self.student.loaded_bytes + self.teacher.loaded_bytes

    @property
    def staging_bytes(self) -> int:
        """The bytes per partition of the staging tiles, through which operands are cast; both models use the same."""
        return max(self.student.staging_bytes, self.teacher.staging_bytes)

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""
        return div_ceil(self.num_positions, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """The number of tiles of 128 classes of the core with the most classes."""
        return div_ceil(div_ceil(self.vocab_size, PARTITIONS), self.cores)

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes per partition of SBUF for blocks of ``tiles`` tiles of positions and ``class_block``
        classes.

        They hold X^T and two blocks of W^T of both models, the buffers of groups of pairs, two rows of each bias, and
        the statistics of a window of blocks of classes.
        """
        needs = self.needs
        operands = (self.student.chip_bytes + self.teacher.chip_bytes) * (tiles * PARTITIONS + 2 * class_block)
        # For a single tile a softcap needs fewer slots; but sizes that fit with every option must fit without one too.
        group = max(_UNCAPPED_RING_TILES, needs.slots * min(tiles, needs.group_tiles))
        rings = group * needs.rings * class_block * FLOAT32_BYTES
        rows = 2 * sum(model.bias for model in needs.models) * class_block * FLOAT32_BYTES
        columns = self.cores * (WINDOW + 1) + SHARED_BLOCKS_MAX
        numbers = (needs.exchanged_statistics + needs.further_statistics) * columns + _POSITION_NUMBERS
        numbers += _LABEL_NUMBERS if needs.target else 0
        numbers += TEMPERATURE_NUMBERS if needs.temperatures else 0
        return operands + rings + rows + tiles * numbers * FLOAT32_BYTES + self.staging_bytes + _SMALL_BYTES

    def position_plan(self, position_block: int, class_block: int) -> PositionSplit:
        """Return blocks of positions of about equal size, in a device loop if the unrolled program would be too long.

        Very many positions always have a loop, however few classes there are.
        """
        unrolled = unrolled_positions(self.num_positions, position_block)
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        return looped_positions(unrolled, self.num_positions, self.most_bodies(unrolled) < steps)

    def most_bodies(self, plan: PositionSplit) -> int:
        """Return the largest number of blocks of classes in the program of a core for each block of positions."""
        total = int(limited_instructions(self.most_instructions) * self.program_share)
        body = plan.tiles * self.pair_instructions + self.block_instructions
        return max(2 * WINDOW, total // plan.copies // body)

    @property
    def most_instructions(self) -> int:
        """The largest number of instructions in the program of a core."""
        return _INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY

    @property
    def pair_instructions(self) -> int:
        """The number of instructions for a pair, including its products."""
        return self.student.depth + self.teacher.depth + self.needs.instructions

    @property
    def block_instructions(self) -> int:
        """The number of instructions of a block of classes besides those of its pairs."""
        of_block = _BLOCK_INSTRUCTIONS
        for stream in (self.student, self.teacher):
            if stream.staging_bytes > 0:
                of_block += _STAGED_INSTRUCTIONS * div_ceil(stream.depth * CLASS_BLOCKS[0], STAGED_ELEMENTS)
        return of_block

    def shared_classes(self, plan: PositionSplit, class_block: int) -> int:
        """Return how many of the last classes both cores process, so that their products take longer than an exchange
        of statistics.

        The result is 0 if a block of these classes would be multiplied before the next block is loaded, or if they
        would be more than an eighth of all classes. A test may set the number, which affects only time
        (:class:`nkilib.core.plan_limits.PlanLimits`).

        Raises:
            ValueError: if a test asks for more classes than the statistics have columns for.
        """
        if self.cores == 1:
            return 0
        override = limits_in_force().shared_classes
        if override is not None:
            return shared_by_override("linear_distillation_forward", override, class_block, self.vocab_size)
        of_class = self.products * (plan.tiles // 2) / _COLUMNS_PER_US
        load = self.loaded_bytes / _BYTES_PER_US
        return shared_classes(of_class, load, class_block, self.vocab_size, _SWAP)

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the estimated time of the launch in us, for blocks of ``tiles`` tiles of positions and ``class_block``
        classes.
        """
        plan = self.position_plan(tiles * PARTITIONS, class_block)
        tiles, needs = plan.tiles, self.needs
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        columns = self.class_tiles * PARTITIONS
        vector_columns = columns + steps * _GAP_COLUMNS
        product = self.products * columns / _COLUMNS_PER_US
        vector = needs.vector_passes * vector_columns / _VECTOR_COLUMNS_PER_US
        scalar = needs.scalar_passes * vector_columns / _SCALAR_COLUMNS_PER_US
        if needs.softcap:
            scalar += 2 * _TABLE_US * steps / min(tiles, needs.group_tiles)
        gpsimd = needs.gpsimd_passes * vector_columns / _GPSIMD_COLUMNS_PER_US
        load = columns * self.loaded_bytes / _BYTES_PER_US
        tile = (self.student.chip_bytes + self.teacher.chip_bytes) * PARTITIONS * PARTITIONS / _BYTES_PER_US
        block_us = max(tiles * max(product, vector, scalar, gpsimd), load) + steps * _STEP_US + tile + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            block_us += _LOOP_US + _ITERATION_US * steps / (bodies - WINDOW)
        return plan.blocks * block_us + (_LOOP_US if plan.is_loop else 0.0)
