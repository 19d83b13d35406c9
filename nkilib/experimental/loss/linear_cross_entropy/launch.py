# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of linear cross-entropy while its kernel is traced: its arguments, and what its options need of a forward.

:class:`LinearLaunch` has operands and targets. The flags of the loss are those of cross-entropy: :func:`scaled_recipe`
and :func:`without_loss` adapt them, :func:`forward_needs` (:class:`ForwardNeeds`) and :func:`has_options` tell which of
them take memory or time. :mod:`.targets` loads the targets of positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

from nkilib.core.hardware import PARTITIONS
from nkilib.experimental.loss.cross_entropy.launch import TEMPERATURE_LIMITS, LossOptions, Options, Wanted
from nkilib.experimental.loss.linear.block_schedule import Block
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.experimental.loss.linear.operands import load_positions
from nkilib.experimental.loss.temperatures import Temperatures
from nkilib.nki import nl

# Groups of tiles of logits: one is multiplied while the sums of the other one are computed.
GROUPS = 2
# Float32 numbers of a position while its temperature becomes a scale.
_TEMPERATURE_NUMBERS = 8


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
        """Return all options at once: whatever fits with them fits with any of them."""
        return cls(*(True for _ in fields(cls)))

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
    def ranks_scores(self) -> bool:
        """Whether the maxima in the statistics are those by which an argmax compares blocks of classes: those of z, or
        under temperatures of positions, which leave their order, those of the logits.
        """
        return self.has_exact_maxima and (self.temperatures or not self.scale)

    @property
    def exchanged_statistics(self) -> int:
        """The number of values per position and block of classes that the cores swap, the target logit included."""
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


@dataclass(frozen=True)
class _FilledPositions:
    """Loads the values of all positions of a launch at once, with a number beyond the last one."""

    fill: float

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Return the values of a vector [N] as float32 [128, tiles]."""
        return load_positions(vector_hbm, self.fill)


@dataclass(frozen=True)
class LinearLaunch(LinearOperands):
    """The arguments that all kernels share: operands and targets.

    Attributes:
        targets_hbm: [N], int32; [N, K] for K target ids per position.
        ids: K, the number of target ids per position.
        temperature_hbm: temperatures of positions, float32 [N] or [1], or None.
    """

    targets_hbm: nl.NkiTensor = field(kw_only=True)
    ids: int = field(default=1, kw_only=True)
    temperature_hbm: nl.NkiTensor | None = field(default=None, kw_only=True)

    def of_positions(self, block: Block) -> LinearLaunch:
        """Return the launch for a block of positions."""
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
        """Load the temperatures of all positions, [128, tiles]; None without temperatures of positions."""
        if self.temperature_hbm is None:
            return None
        shape = (PARTITIONS, self.position_tiles)
        return Temperatures.load(self.temperature_hbm, _FilledPositions(1.0), shape, TEMPERATURE_LIMITS)


def scaled_recipe(recipe: LossOptions, logit_scale: float) -> LossOptions:
    """Return the recipe for logits y that are not yet multiplied by the scale s, ``logit_scale``.

    With cap c and temperature T, z is softcap(s y, c) / T, which equals softcap(y, c / s) / (T / s). So the recipe
    gets the cap c / s and the temperature T / s, two host constants: no operand of a product is multiplied, and
    nothing is rounded for them.
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
    """Return launch and options of a backward without a gradient of the loss.

    Options that only the loss needs are removed.
    """
    recipe = replace(options.recipe, label_smoothing=0.0, lse_square_scale=0.0)
    return replace(launch, class_weight_hbm=None), replace(options, is_weighted=False, recipe=recipe)


def rounds_products(scale: float) -> bool:
    """Return whether products with ``scale`` may make different numbers equal.

    Products with a power of two are exact.
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
    """Return whether there is a bias, an option of the loss or a result besides loss and log-sum-exp; each takes tiles.

    In a backward (``of_backward``), a temperature or a scale of the logits takes no tiles and does not count.
    """
    usual = LossOptions()
    recipe = replace(options.recipe, ignore_index=usual.ignore_index)
    if of_backward:
        recipe = replace(recipe, temperature=usual.temperature)
    of_launch = launch.bias_hbm is not None or launch.temperature_hbm is not None
    return of_launch or options.is_weighted or recipe != usual or options.wanted != Wanted()
