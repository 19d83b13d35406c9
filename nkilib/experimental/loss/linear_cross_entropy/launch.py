# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of linear cross-entropy while its kernel is traced: its arguments, and the memory and time of its options.

N positions, K target ids per position; z is the logit after cap and temperature, *scores* are the logits, or tanh(logit
/ cap) under a cap; dW and db are the gradients of weight and bias.

:class:`LinearLaunch` holds operands and targets. The options of the loss are those of cross-entropy;
:func:`scaled_recipe` and :func:`without_loss` adapt them. :func:`forward_needs` (:class:`ForwardNeeds`) tells which
options take memory or time in a forward, :func:`tile_needs` and :func:`backward_sizes` in a backward, and
:func:`has_options` whether there are any. :mod:`.targets` loads the targets of positions.

The functions whose names end with ``_of_ids`` count the memory and the instructions that a backward takes for several
target ids per position (:mod:`.id_gradient`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Final

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.cross_entropy.launch import (
    TEMPERATURE_LIMITS,
    LossOptions,
    Options,
    PositionUpstream,
    Wanted,
)
from nkilib.experimental.loss.linear.backward.geometry import (
    GRADIENT_COLUMNS,
    GRADIENT_INSTRUCTIONS,
    SUM_INSTRUCTIONS,
    BackwardSizes,
    TileNeeds,
)
from nkilib.experimental.loss.linear.block_schedule import IDS_OF_SEARCH, Block, searched_ids
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.experimental.loss.linear.operands import AllPositions
from nkilib.experimental.loss.temperatures import Temperatures
from nkilib.nki import nl

# Groups of tiles of logits: one is multiplied while the sums of the other one are computed.
GROUPS = 2
# Float32 numbers of a position while its temperature becomes a scale, in the forward; in the backward also the slopes.
_TEMPERATURE_NUMBERS = 8
_TEMPERATURE_COLUMNS = 10
# With several target ids: tiles of gradients that are gathered at a time.
ID_SLOTS: Final = 2
# Instructions of a tile besides the searches: the ids of its positions, how many are below it, a running sum, places,
# the same as indices, the gather and the sum.
_INSTRUCTIONS_OF_IDS = 7
# A running sum and, for each buffer slot, indices and gradients.
_TILES_OF_IDS = 1 + 2 * ID_SLOTS


@dataclass(frozen=True)
class ForwardNeeds:
    """The options of a forward that take memory or time.

    Attributes:
        bias: whether there is a bias, which may mask classes.
        class_weights: whether the class weights of all classes are needed.
        softcap: whether the logits are capped.
        scale: whether z differs from the logits: there is a cap or a temperature.
        sums: whether weighted scores are summed over all classes, such as for label smoothing.
        entropy: whether the entropy is requested.
        squares: whether log_sum_squares is requested.
        mean: whether the mean logit is requested.
        argmax: whether the argmax is requested.
        products: whether z is computed for the argmax, because different scores may round to the same z.
        temperatures: whether each position has a temperature.
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
    temperatures: bool = False

    @classmethod
    def everything(cls) -> ForwardNeeds:
        """Return all options at once: a tiling that fits with all of them fits with any of them."""
        return cls(*(True for _ in fields(cls)))

    @property
    def keeps_exponentials(self) -> bool:
        """Whether the exponentials are read again after their sum, and so must be kept."""
        return self.entropy or self.squares

    @property
    def counts_classes(self) -> bool:
        """Whether the classes that are not masked must be counted: for a mean logit with a bias."""
        return self.mean and self.bias

    @property
    def has_vector_terms(self) -> bool:
        """Whether Vector sums terms over the classes, which needs a tile for the terms."""
        return self.sums or self.entropy or self.counts_classes

    @property
    def has_exact_maxima(self) -> bool:
        """Whether the maxima in the statistics, times the scale, are the maxima of z: neither bias nor cap."""
        return not (self.bias or self.softcap)

    @property
    def ranks_scores(self) -> bool:
        """Whether the argmax can compare blocks of classes by the maxima in the statistics.

        The maxima must be those of z, or those of logits that are only divided by a temperature per position; the
        division keeps their order.
        """
        return self.has_exact_maxima and (self.temperatures or not self.scale)

    @property
    def exchanged_statistics(self) -> int:
        """The number of values per position and block of classes that the cores swap, including the target logit."""
        of_mean = 1 + self.bias if self.mean else 0
        of_argmax = 1 + (not self.ranks_scores) if self.argmax else 0
        return 3 + 2 * self.sums + self.entropy + self.squares + of_mean + of_argmax

    @property
    def further_statistics(self) -> int:
        """The number of values per position and block of classes that are computed when statistics are combined."""
        moments = self.sums or self.entropy or self.squares or self.mean
        of_scale = self.scale + _TEMPERATURE_NUMBERS * self.temperatures
        return 1 + of_scale + 2 * moments + 2 * (self.entropy or self.argmax)

    @property
    def group_rings(self) -> int:
        """The number of float32 buffers of the size of a tile of logits that each tile of a group needs."""
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
        """The number of instructions for a tile of logits besides its products, including its part of the instructions
        for a group.
        """
        passes = self.vector_passes + self.scalar_passes + self.products + (self.entropy and self.bias)
        return passes + (1 if self == ForwardNeeds() else 2 + self.argmax)


@dataclass(frozen=True)
class LinearLaunch(LinearOperands):
    """The arguments that all kernels share: operands and targets.

    Attributes:
        targets_hbm: the targets, int32 [N], or [N, K] for several target ids per position.
        ids: K.
        temperature_hbm: the temperatures of positions, float32 [N] or [1], or None.
    """

    targets_hbm: nl.NkiTensor = field(kw_only=True)
    ids: int = field(default=1, kw_only=True)
    temperature_hbm: nl.NkiTensor | None = field(default=None, kw_only=True)

    def of_positions(self, block: Block) -> LinearLaunch:
        """Return the launch with only the positions in ``block``."""
        temperature_hbm = self.temperature_hbm
        if temperature_hbm is not None and tuple(temperature_hbm.shape) != (1,):
            temperature_hbm = block.of(temperature_hbm)
        return replace(
            self,
            input_hbm=block.of(self.input_hbm),
            targets_hbm=block.of(self.targets_hbm),
            temperature_hbm=temperature_hbm,
        )

    def temperatures(self) -> Temperatures | None:
        """Load the temperatures of all positions, [128, tiles]; return None if ``temperature_hbm`` is None."""
        if self.temperature_hbm is None:
            return None
        shape = (PARTITIONS, self.position_tiles)
        return Temperatures.load(self.temperature_hbm, AllPositions(fill=1.0), shape, TEMPERATURE_LIMITS)


def scaled_recipe(recipe: LossOptions, logit_scale: float) -> LossOptions:
    """Return the recipe for logits y that are not yet multiplied by the scale s, ``logit_scale``.

    With cap c and temperature T, z is softcap(s y, c) / T, which equals softcap(y, c / s) / (T / s). So the recipe gets
    the cap c / s and the temperature T / s, and no tensor is multiplied by s.
    """
    if logit_scale == 1.0:
        return recipe
    cap = recipe.logit_softcap
    return replace(
        recipe,
        logit_softcap=None if cap is None else cap / logit_scale,
        temperature=recipe.temperature / logit_scale,
    )


def without_loss(launch: LinearLaunch, options: Options) -> tuple[LinearLaunch, Options]:
    """Return the launch and options for a backward without a gradient of the loss.

    Options that affect only the loss are removed.
    """
    recipe = replace(options.recipe, label_smoothing=0.0, lse_square_scale=0.0)
    return replace(launch, class_weight_hbm=None), replace(options, is_weighted=False, recipe=recipe)


def rounds_products(scale: float) -> bool:
    """Return whether multiplying by ``scale`` may round different numbers to the same one.

    Multiplying by a power of two is exact.
    """
    return math.frexp(scale)[0] != 0.5


def forward_needs(launch: LinearLaunch, options: Options) -> ForwardNeeds:
    """Return the options of a forward that take memory or time, beyond loss and log-sum-exp."""
    wanted = options.wanted
    return ForwardNeeds(
        bias=launch.bias_hbm is not None,
        class_weights=options.needs_class_weights,
        softcap=options.softcap is not None,
        scale=options.scale != 1.0 or launch.temperature_hbm is not None,
        sums=options.sums_classes,
        entropy=wanted.entropy,
        squares=wanted.log_sum_squares,
        mean=wanted.mean_logit,
        argmax=wanted.argmax,
        products=wanted.argmax and launch.temperature_hbm is None and rounds_products(options.scale),
        temperatures=launch.temperature_hbm is not None,
    )


def has_options(launch: LinearLaunch, options: Options, *, of_backward: bool = False) -> bool:
    """Return whether a launch has options that take tiles: a bias, an option of the loss, or a further result.

    Results besides loss and log-sum-exp are further results. In a backward (``of_backward``), a temperature that is a
    number takes no tiles and does not count.
    """
    usual = LossOptions()
    recipe = replace(options.recipe, ignore_index=usual.ignore_index)
    if of_backward:
        recipe = replace(recipe, temperature=usual.temperature)
    of_launch = launch.bias_hbm is not None or launch.temperature_hbm is not None
    return of_launch or options.is_weighted or recipe != usual or options.wanted != Wanted()


def is_factored(launch: LinearLaunch, upstream: PositionUpstream) -> bool:
    """Return whether ``Exponents.factor_sbuf`` corrects the rounding of lse.

    It needs the maximum of the forward. It is not used for float32 products: there another pass over every tile
    corrects the rounding.
    """
    return upstream.maximum_hbm is not None and launch.dtype != nl.float32


def has_rest(launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> bool:
    """Return whether the gradient has other terms than p - onehot (softmax minus one-hot target), which take further
    tiles.
    """
    of_loss = options.spread != 0.0 or options.square != 0.0
    of_others = upstream.grad_lse_hbm is not None or upstream.grad_entropy_hbm is not None
    return of_loss or of_others or is_factored(launch, upstream)


def columns_of_ids(ids: int) -> int:
    """Return the number of values per partition and tile of positions that are kept for several target ids per
    position.

    They are the sorted ids, the ids counted from the first class of a block, and the gradients.
    """
    return 0 if ids == 1 else 3 * searched_ids(ids) + 1


def tiles_of_ids(ids: int) -> int:
    """Return the number of float32 tiles as large as a tile of logits that several target ids per position need.

    :class:`.id_gradient.IdTiles` allocates the tiles.
    """
    return 0 if ids == 1 else 2 + _TILES_OF_IDS


def numbers_of_ids(ids: int) -> int:
    """Return the number of further values per partition that several target ids per position need.

    They are the ids that follow the class numbers, and a mask of the ids below a tile; :func:`columns_of_ids` and
    :func:`tiles_of_ids` return the rest.
    """
    return 0 if ids == 1 else 3 * searched_ids(ids)


def instructions_of_ids(ids: int) -> int:
    """Return the number of instructions that several target ids per position add to a tile of the gradient."""
    return 0 if ids == 1 else searched_ids(ids) // IDS_OF_SEARCH + _INSTRUCTIONS_OF_IDS


def tile_needs(
    has_bias: bool = False,
    has_class_weights: bool = False,
    has_softcap: bool = False,
    has_rest: bool = False,
    ids: int = 1,
    keeps_logits: bool = False,
    sums_bias: bool = False,
    has_temperatures: bool = False,
) -> TileNeeds:
    """Return the SBUF and instructions that a launch needs for its tiles of the gradient.

    Args:
        has_bias, has_class_weights: whether a row of biases, or of class weights, is needed for the classes of a block.
        has_softcap: whether the logits are capped.
        has_rest: whether the gradient has other terms than p - onehot, see :func:`has_rest`.
        ids: the number of target ids per position.
        keeps_logits: whether the logits are loaded from HBM, with bias and cap applied.
        sums_bias: whether db is summed from gradients before they are rounded.
        has_temperatures: whether each position has a temperature.
    """
    return TileNeeds(
        columns=GRADIENT_COLUMNS + columns_of_ids(ids) + has_temperatures * _TEMPERATURE_COLUMNS,
        rows=has_bias + has_class_weights + sums_bias,
        rings=(has_bias and not sums_bias) + has_softcap + has_rest,
        tiles=tiles_of_ids(ids),
        numbers=numbers_of_ids(ids),
        place_bytes=int(ids > 1),
        opened=int(has_softcap and not keeps_logits),
        instructions=GRADIENT_INSTRUCTIONS + instructions_of_ids(ids) + sums_bias * SUM_INSTRUCTIONS,
    )


def backward_sizes(
    launch: LinearLaunch, options: Options, upstream: PositionUpstream, adds_to_weight: bool, sums_bias: bool
) -> BackwardSizes:
    """Return the sizes and options of a launch on which the plan of its backward depends.

    Args:
        launch, options, upstream: the arguments of the kernel.
        adds_to_weight: whether dW is added to a sum.
        sums_bias: whether db is summed from gradients that are not rounded.
    """
    return BackwardSizes(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        dtype_bytes(launch.dtype),
        launch.has_classes_first,
        tile_needs(
            launch.bias_hbm is not None,
            options.needs_class_weights,
            options.softcap is not None,
            has_rest(launch, options, upstream),
            launch.ids,
            sums_bias=sums_bias,
            has_temperatures=launch.temperature_hbm is not None,
        ),
        adds_to_weight,
        weight_itemsize=launch.casts.weight,
        staging_bytes=launch.casts.backward_staging(launch.has_classes_first),
    )
