# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of a tiling for the linear cross-entropy kernels, and the bytes of HBM that they take: arithmetic only.

N positions, D features, V classes, K target ids per position; X and W are the operands, dX and dW their gradients; z is
the logit after cap and temperature. A *tile* is 128 positions, classes or features.

:func:`choose_linear_tiling` chooses, of the blocks that fit SBUF, those with the least estimated time.
:class:`ForwardSizes` estimates it for the forward, :mod:`nkilib.experimental.loss.linear.tiling` for gradients. The
more positions are on chip, the less often W is read; the more classes a block has, the fewer instructions there are.
``nkilib.simulator.profile`` models times; tests check the choice against it.

:func:`form_bytes` counts the bytes of HBM of separate forward and backward launches, and of a single launch of both;
:func:`logits_blocks` gives the blocks of positions whose logits a single launch keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.host.sizes import checked_size, dtype_name
from nkilib.core.plan_limits import PlanLimits, limited_instructions, limited_sbuf_bytes, limits_in_force
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes, TileNeeds
from nkilib.experimental.loss.linear.block_schedule import (
    WINDOW,
    PositionSplit,
    looped_positions,
    position_parts,
    unrolled_positions,
)
from nkilib.experimental.loss.linear.launch import (
    CLASSES_FIRST,
    CLASSES_MAX,
    FEATURES_MAX,
    FEATURES_MIN,
    IDS_MAX,
    POSITIONS_MAX,
    SBUF_BYTES,
    SCRATCH_BYTES,
    STAGED_ELEMENTS,
    WEIGHT_LAYOUTS,
    CastBytes,
    LinearTiling,
)
from nkilib.experimental.loss.linear.tiling import (
    CLASS_BLOCKS,
    SHARED_BLOCKS_MAX,
    BackwardLaunch,
    SwapTimes,
    backward_bytes,
    choose_backward_tiling,
    fastest_tiling,
    shared_by_override,
    shared_classes,
)
from nkilib.experimental.loss.linear_cross_entropy.launch import GROUPS, ForwardNeeds, tile_needs

__all__ = ["BACKWARD", "FORWARD", "FORWARD_BACKWARD", "LinearTiling", "choose_linear_tiling"]


# Tiles of positions whose logits are side by side in the forward.
_GROUP_TILES = 4
# The same under a cap, where Scalar loads two tables for each group, if Scalar has about as much to do as Tensor: with
# up to _CAPPED_DEPTH tiles of features.
_CAPPED_GROUP_TILES, _CAPPED_DEPTH = 8, 12
# Bytes of an element of the terms of a sum.
_TERM_BYTES = 2
# Numbers per position besides its statistics: plain, and further ones with any option.
_POSITION_NUMBERS, _OPTION_NUMBERS = 16, 16

# Bytes of tiles that do not depend on the tiling, with room for alignment.
_SMALL_BYTES = 2048
# The time of a swap of the cores, and of a load until its first byte arrives. The blocks of classes that the cores
# share take as long as a swap.
_SWAP_US, _LOAD_US = 6.0, 2.3
# Instructions of a core's program for up to so many positions, and beyond.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 28_000, 56_000
# Instructions of a block of classes besides those of its tiles.
_BLOCK_INSTRUCTIONS = 20
# Numbers per target id of a position, if there are several: its place, the logit there, and values computed from it.
_ID_NUMBERS = 14
# Instructions of a staged tile: a transfer and a cast.
_STAGED_INSTRUCTIONS = 2

# Modelled rates of trn2 (docs/explanation/performance_model.md): Tensor takes a column a cycle, DMA transposes at 90%.
_COLUMNS_PER_US = 2400.0
_BYTES_PER_US = 331_000.0
# A pass of Vector and of Scalar over a tile: a column a cycle, and the time between two instructions. A table load.
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _GAP_COLUMNS, _TABLE_US = 960.0, 1200.0, 164.0, 1.28
# A loop's start and end; the edge of an iteration; the fixed time of a block of classes, and of a block of positions.
_LOOP_US, _ITERATION_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.1, 15.0

FORWARD, BACKWARD, FORWARD_BACKWARD = "forward", "backward", "forward_backward"
_ITEMSIZES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class ForwardSizes:
    """The sizes and options of a forward launch from which its tiling is chosen.

    Attributes:
        num_positions, num_features, vocab_size: N, D and V.
        itemsize: the bytes of an element of X and W.
        cores: the number of cores of the launch.
        needs: the options that take memory or time, beyond loss and log-sum-exp.
        program_share: the fraction of a program's allowed instructions that the forward may use.
        weight_itemsize: the bytes of an element of W in HBM if W is cast while it is loaded; else 0.
        staging_bytes: the bytes per partition for operands that are transposed and then cast.
        ids: K.
    """

    num_positions: int
    num_features: int
    vocab_size: int
    itemsize: int
    cores: int
    needs: ForwardNeeds = field(default_factory=ForwardNeeds)
    program_share: float = 1.0
    weight_itemsize: int = 0
    staging_bytes: int = 0
    ids: int = 1

    @property
    def loaded_itemsize(self) -> int:
        """The bytes of an element of W that DMA moves."""
        return self.weight_itemsize or self.itemsize

    @property
    def depth(self) -> int:
        """The number of tiles of features."""
        return div_ceil(self.num_features, PARTITIONS)

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""
        return div_ceil(self.num_positions, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """The number of tiles of classes of the core with the most classes."""
        return div_ceil(div_ceil(self.vocab_size, PARTITIONS), self.cores)

    @property
    def passes(self) -> int:
        """The number of passes that Tensor takes for a product: four for float32, else one."""
        return 4 if self.itemsize == 4 else 1

    @property
    def group_tiles(self) -> int:
        """The largest number of tiles of positions whose logits are processed side by side, as a group."""
        is_busy = self.needs.softcap and self.passes * self.depth <= _CAPPED_DEPTH
        return _CAPPED_GROUP_TILES if is_busy else _GROUP_TILES

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes per partition of SBUF for blocks of ``tiles`` tiles of positions and ``class_block``
        classes.

        They hold X and two blocks of W, the tiles of two groups, per-class values of blocks, and the statistics of a
        window of blocks of classes.
        """
        needs = self.needs
        operands = self.depth * self.itemsize * (tiles * PARTITIONS + 2 * class_block)
        rings = GROUPS * min(tiles, self.group_tiles) * needs.group_rings * class_block * FLOAT32_BYTES
        terms = GROUPS * (1 + needs.has_vector_terms) * class_block * _TERM_BYTES
        rows = (2 * (needs.bias + needs.class_weights) + needs.counts_classes) * class_block * FLOAT32_BYTES
        columns = self.cores * (WINDOW + 1) + SHARED_BLOCKS_MAX
        numbers = (needs.exchanged_statistics + needs.further_statistics) * columns + _POSITION_NUMBERS
        numbers += 0 if needs == ForwardNeeds() else _OPTION_NUMBERS
        numbers += _ID_NUMBERS * self.ids if self.ids > 1 else 0
        of_tiles = tiles * numbers * FLOAT32_BYTES
        return operands + rings + terms + rows + of_tiles + self.staging_bytes + _SMALL_BYTES

    def position_plan(self, position_block: int, class_block: int) -> PositionSplit:
        """Return the split of the positions into blocks of about equal size, at most ``position_block`` each.

        The blocks are a device loop if there are very many positions, or if a program that contains all blocks of
        classes for each block of positions would be too long.
        """
        unrolled = unrolled_positions(self.num_positions, position_block)
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        return looped_positions(unrolled, self.num_positions, self.most_bodies(unrolled) < steps)

    def most_bodies(self, plan: PositionSplit) -> int:
        """Return how many blocks of classes the program of a core may contain for each block of positions."""
        of_tile = self.depth + self.needs.instructions
        of_block = _BLOCK_INSTRUCTIONS
        if self.staging_bytes > 0:
            of_block += _STAGED_INSTRUCTIONS * div_ceil(self.depth * CLASS_BLOCKS[0], STAGED_ELEMENTS)
        total = limited_instructions(_INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY)
        return max(2 * WINDOW, int(total * self.program_share) // plan.copies // (plan.tiles * of_tile + of_block))

    def shared_classes(self, plan: PositionSplit, class_block: int) -> int:
        """Return how many of the last classes both cores process, so that their products take longer than a swap of
        statistics.

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
            return shared_by_override("linear_cross_entropy_forward", override, class_block, self.vocab_size)
        of_class = self.passes * self.depth * (plan.tiles // 2) / _COLUMNS_PER_US
        load = self.depth * PARTITIONS * self.loaded_itemsize / _BYTES_PER_US
        return shared_classes(of_class, load, class_block, self.vocab_size, SwapTimes(_SWAP_US, _LOAD_US))

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the approximate time of the launch in us, for blocks of ``tiles`` tiles of positions and
        ``class_block`` classes.
        """
        plan = self.position_plan(tiles * PARTITIONS, class_block)
        tiles = plan.tiles
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        columns = self.class_tiles * PARTITIONS
        product = self.passes * self.depth * columns / _COLUMNS_PER_US
        vector = self.needs.vector_passes * (columns + steps * _GAP_COLUMNS) / _VECTOR_COLUMNS_PER_US
        scalar = self.needs.scalar_passes * (columns + steps * _GAP_COLUMNS) / _SCALAR_COLUMNS_PER_US
        if self.needs.softcap:
            scalar += 2 * _TABLE_US * steps / min(tiles, self.group_tiles)
        load = columns * self.depth * PARTITIONS * self.loaded_itemsize / _BYTES_PER_US
        tile = self.depth * PARTITIONS * PARTITIONS * self.itemsize / _BYTES_PER_US
        block_us = max(tiles * max(product, vector, scalar), load) + steps * _STEP_US + tile + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            block_us += _LOOP_US + _ITERATION_US * steps / (bodies - WINDOW)
        return plan.blocks * block_us + (_LOOP_US if plan.is_loop else 0.0)


class LogitsBlocks(NamedTuple):
    """The blocks of positions of a fused forward-backward launch.

    Attributes:
        positions: the number of positions of a block, whole tiles of 128 if there are several; the last block may have
            fewer.
        number: the number of blocks.
    """

    positions: int
    number: int


class FormBytes(NamedTuple):
    """The bytes of HBM beyond inputs and outputs that a training step takes, as two launches and as one.

    Attributes:
        two_launches: the bytes of separate forward and backward launches: the larger of the two.
        one_launch: the bytes of a single launch of both.
    """

    two_launches: int
    one_launch: int


def logits_blocks(
    num_positions: int, num_features: int, vocab_size: int, scratch_bytes: int = SCRATCH_BYTES
) -> LogitsBlocks:
    """Return the blocks of positions whose logits a single launch of loss and gradients keeps.

    There is one block if all logits take no more than ``scratch_bytes`` plus the sum of dW that several blocks need.
    Otherwise there are the fewest blocks whose logits fit ``scratch_bytes``, as equal as tiles of 128 positions allow.
    Very many positions are several blocks however few classes there are.

    Args:
        num_positions: N.
        num_features: D.
        vocab_size: V.
        scratch_bytes: the bytes that logits may take, at least the logits of 128 positions.
    """
    of_position, parts = FLOAT32_BYTES * vocab_size, position_parts(num_positions, num_features)
    fits = num_positions * of_position <= scratch_bytes + FLOAT32_BYTES * vocab_size * num_features
    if fits and not parts.is_split:
        return LogitsBlocks(num_positions, 1)
    tiles = div_ceil(num_positions, PARTITIONS)
    blocks = div_ceil(tiles, max(1, min(scratch_bytes // of_position, parts.size) // PARTITIONS))
    of_block = div_ceil(tiles, blocks)
    return LogitsBlocks(of_block * PARTITIONS, div_ceil(tiles, of_block))


def one_launch_bytes(
    num_positions: int, num_features: int, vocab_size: int, scratch_bytes: int = SCRATCH_BYTES, cores: int = 2
) -> int:
    """Return the bytes of HBM that ``linear_cross_entropy_forward_backward`` takes on ``cores`` cores.

    See :func:`logits_blocks` for the other arguments.
    """
    blocks = logits_blocks(num_positions, num_features, vocab_size, scratch_bytes)
    logits = blocks.positions * vocab_size
    weight_sum = vocab_size * num_features if blocks.number > 1 else 0
    return FLOAT32_BYTES * (cores * num_positions * num_features + logits + weight_sum)


def form_bytes(
    num_positions: int,
    num_features: int,
    vocab_size: int,
    position_block: int,
    class_block: int,
    *,
    scratch_bytes: int = SCRATCH_BYTES,
    cores: int = 2,
) -> FormBytes:
    """Return the bytes of HBM beyond inputs and outputs, of separate forward and backward launches and of a single
    launch of both.

    - The forward takes none.
    - The backward keeps a float32 sum of dX for each core. With several blocks of positions it also keeps a float32 sum
      of dW of one class block for each core, of at most 64 MiB.
    - A single launch keeps the sums of dX and the float32 logits of a block of positions. With several blocks it also
      keeps a float32 sum of dW.

    Not considered are the copy of an X that is rounded to a ``compute_dtype``, and the parts into which a backward
    splits more than 65,536 positions (``split_backward_bytes``).

    See :func:`backward_bytes` and :func:`logits_blocks` for the arguments.
    """
    return FormBytes(
        backward_bytes(num_positions, num_features, position_block, class_block, cores=cores),
        one_launch_bytes(num_positions, num_features, vocab_size, scratch_bytes, cores),
    )


class _Launch(NamedTuple):
    """The validated arguments of :func:`choose_linear_tiling`, which are the key of the cache."""

    num_positions: int
    num_features: int
    vocab_size: int
    itemsize: int
    cores: int
    target: str
    has_classes_first: bool
    extended: bool
    scratch_bytes: int
    casts: CastBytes
    needs: ForwardNeeds
    ids: int = 1


def _within(name: str, size: int, least: int, most: int) -> int:
    if not least <= size <= most:
        raise ValueError(f"choose_linear_tiling: {name} must be from {least} to {most}, got {size}")
    return size


def _choose_for_forward(launch: _Launch) -> LinearTiling:
    sizes = ForwardSizes(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        launch.itemsize,
        launch.cores,
        launch.needs,
        weight_itemsize=launch.casts.weight,
        staging_bytes=launch.casts.forward_staging(launch.has_classes_first),
        ids=launch.ids,
    )
    return fastest_tiling(sizes, limited_sbuf_bytes(SBUF_BYTES[launch.target]))


def _tile_needs(launch: _Launch, keeps_logits: bool) -> TileNeeds:
    # With every option if the launch is ``extended``, else with none.
    has = launch.extended
    return tile_needs(has, has, has, has, ids=launch.ids, keeps_logits=keeps_logits)


def _choose_for_gradients(launch: _Launch, adds_to_weight: bool, keeps_logits: bool) -> LinearTiling:
    sizes = BackwardSizes(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        launch.itemsize,
        launch.has_classes_first,
        _tile_needs(launch, keeps_logits),
        adds_to_weight=adds_to_weight or launch.extended,
        keeps_logits=keeps_logits,
        weight_itemsize=launch.casts.weight,
        staging_bytes=launch.casts.backward_staging(launch.has_classes_first, keeps_logits),
    )
    available_bytes = limited_sbuf_bytes(SBUF_BYTES[launch.target])
    return choose_backward_tiling(BackwardLaunch(sizes, launch.cores, launch.target, available_bytes))


def _choose_for_backward(launch: _Launch) -> LinearTiling:
    # If the positions are split into parts, the tiling is that of one part.
    parts = position_parts(launch.num_positions, launch.num_features, launch.ids)
    return _choose_for_gradients(launch._replace(num_positions=parts.size), parts.is_split, keeps_logits=False)


def _choose_for_one_launch(launch: _Launch) -> LinearTiling:
    blocks = logits_blocks(launch.num_positions, launch.num_features, launch.vocab_size, launch.scratch_bytes)
    block = launch._replace(num_positions=min(blocks.positions, launch.num_positions))
    return _choose_for_gradients(block, adds_to_weight=blocks.number > 1, keeps_logits=True)


_CHOICES: Final[dict[str, Callable[[_Launch], LinearTiling]]] = {
    FORWARD: _choose_for_forward,
    BACKWARD: _choose_for_backward,
    FORWARD_BACKWARD: _choose_for_one_launch,
}


@lru_cache(maxsize=1024)
def _chosen(direction: str, launch: _Launch, limits: PlanLimits) -> LinearTiling:
    # The choice depends on the limits, which are an argument so that the key of the cache includes them.
    return _CHOICES[direction](launch)


def choose_linear_tiling(
    num_positions: int,
    num_features: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    *,
    cores: int = 2,
    target: str = "trn2",
    weight_layout: str = "vd",
    extended: bool = False,
    scratch_bytes: int = SCRATCH_BYTES,
    input_dtype: Any = None,
    weight_dtype: Any = None,
    forward_needs: ForwardNeeds | None = None,
    ids: int = 1,
) -> LinearTiling:
    """Return the tiling with which a kernel is, in the model, fastest or nearly so; the kernels use it by default.

    The choice is modelled, not measured: within 3% of the best tiling of a search on trn2. Results are cached.

    Example::

        tiling = choose_linear_tiling(4096, 4096, 128256, nl.bfloat16, "backward")
        gradients = linear_cross_entropy_backward[2](input, weight, targets, lse, grad_loss, **tiling._asdict())

    Args:
        num_positions: N, rows of the input, 1 to 2^31 - 1.
        num_features: D, columns of the input, 16 to 16,384.
        vocab_size: V, classes of the weight, 1 to 2^24.
        dtype: the dtype of the products, bfloat16, float16 or float32: an NKI, numpy or torch dtype, or a string.
        direction: ``"forward"``, ``"backward"`` or ``"forward_backward"``.
        cores: the number of cores of the launch, 1 or 2.
        target: ``"trn2"`` or ``"trn3"``.
        weight_layout: ``"vd"`` or ``"dv"``.
        extended: whether the launch has a bias, an option of the loss, or a further result, upstream gradient or sum of
            dW. The choice fits any of them. ``ignore_index`` is not such an option.
        scratch_bytes: the argument ``scratch_bytes`` of ``linear_cross_entropy_forward_backward``.
        input_dtype, weight_dtype: the dtypes of X and W if the kernel is given a ``compute_dtype``, which is ``dtype``
            in this case; None for ``dtype``.
        forward_needs: the options of a forward; None for all of them if ``extended``, else none.
        ids: K, 1 to 64, for ``linear_token_scores_forward`` and ``linear_token_scores_backward``.

    Returns:
        The tiling, which the kernels accept for such a launch on the target.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is out of range, or another argument is unknown.
    """
    caller = "choose_linear_tiling"
    sizes = [
        _within(name, checked_size(caller, name, value, "operands"), least, most)
        for name, value, least, most in (
            ("num_positions", num_positions, 1, POSITIONS_MAX),
            ("num_features", num_features, FEATURES_MIN, FEATURES_MAX),
            ("vocab_size", vocab_size, 1, CLASSES_MAX),
            ("ids", ids, 1, IDS_MAX),
        )
    ]
    name = dtype_name(dtype)
    operands = [name if operand is None else dtype_name(operand) for operand in (input_dtype, weight_dtype)]
    for argument, value, known in (
        ("dtype", name, tuple(_ITEMSIZES)),
        ("input_dtype", operands[0], tuple(_ITEMSIZES)),
        ("weight_dtype", operands[1], tuple(_ITEMSIZES)),
        ("direction", direction, tuple(_CHOICES)),
        ("cores", cores, (1, 2)),
        ("target", target, tuple(SBUF_BYTES)),
        ("weight_layout", weight_layout, WEIGHT_LAYOUTS),
    ):
        if value not in known:
            raise ValueError(f"{caller}: {argument} must be one of {', '.join(map(str, known))}, got {value!r}")
    first = weight_layout == CLASSES_FIRST
    positions, features, classes, ids = sizes
    casts = CastBytes(*(0 if operand == name else _ITEMSIZES[operand] for operand in operands))
    needs = forward_needs
    if needs is None:
        needs = ForwardNeeds.everything() if extended else ForwardNeeds()
    launch = _Launch(
        positions,
        features,
        classes,
        _ITEMSIZES[name],
        cores,
        target,
        first,
        bool(extended),
        scratch_bytes,
        casts,
        needs,
        ids,
    )
    return _chosen(direction, launch, limits_in_force())
