# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operands and options of a launch while its kernel is traced; the flags of the loss are those of cross-entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from nkilib.experimental.loss.cross_entropy.options import LossOptions, Options, Wanted
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.experimental.loss.linear_cross_entropy.shared.forward_needs import ForwardNeeds
from nkilib.nki import nl

# Target ids of a position.
IDS_MAX = 64


@dataclass(frozen=True)
class LinearLaunch(LinearOperands):
    """The arguments that all kernels share: operands and targets.

    Attributes:
        targets_hbm: [N], int32; [N, K] for K target ids per position.
        ids: K, the number of target ids per position.
    """

    targets_hbm: nl.NkiTensor = field(kw_only=True)
    ids: int = field(default=1, kw_only=True)

    def of_positions(self, block: Block) -> LinearLaunch:
        """Return the launch for a block of positions."""
        return replace(self, input_hbm=block.of(self.input_hbm), targets_hbm=block.of(self.targets_hbm))


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


def forward_needs(launch: LinearLaunch, options: Options) -> ForwardNeeds:
    """Return the options of a forward that take memory or time, beyond loss and log-sum-exp."""
    wanted = options.wanted
    return ForwardNeeds(
        bias=launch.bias_hbm is not None,
        class_weights=options.needs_class_weights,
        softcap=options.softcap is not None,
        scale=options.scale != 1.0,
        sums=options.sums_classes,
        entropy=wanted.entropy,
        squares=wanted.log_sum_squares,
        mean=wanted.mean_logit,
        argmax=wanted.argmax,
        products=wanted.argmax and rounds_products(options.scale),
    )


def rounds_products(scale: float) -> bool:
    """Return whether products with ``scale`` may make different numbers equal.

    Products with a power of two are exact.
    """
    return math.frexp(scale)[0] != 0.5


def has_options(launch: LinearLaunch, options: Options, *, of_backward: bool = False) -> bool:
    """Return whether there is a bias, an option of the loss or a result besides loss and log-sum-exp; each takes tiles.

    In a backward (``of_backward``), a temperature or a scale of the logits takes no tiles and does not count.
    """
    usual = LossOptions()
    recipe = replace(options.recipe, ignore_index=usual.ignore_index)
    if of_backward:
        recipe = replace(recipe, temperature=usual.temperature)
    return launch.bias_hbm is not None or options.is_weighted or recipe != usual or options.wanted != Wanted()
