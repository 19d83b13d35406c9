# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of linear cross-entropy while its kernel is traced: operands, needs of the options, and targets of
positions.

The flags of the loss are those of cross-entropy; :class:`ForwardNeeds` says what they need of a forward. Several target
ids per position, [positions, ids] in HBM, are tiles [128, tiles, ids] on chip (:func:`load_ids`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.tiles import cast, float32_like
from nkilib.experimental.loss.cross_entropy.launch import Classes, LossOptions, Options, Wanted
from nkilib.experimental.loss.cross_entropy.targets import TargetMasks, TargetValues
from nkilib.experimental.loss.linear.launch import Block, LinearOperands
from nkilib.experimental.loss.linear.operands import load_positions
from nkilib.nki import nisa, nl

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
        scale=options.scale != 1.0,
        sums=options.sums_classes,
        entropy=wanted.entropy,
        squares=wanted.log_sum_squares,
        mean=wanted.mean_logit,
        argmax=wanted.argmax,
        products=wanted.argmax and rounds_products(options.scale),
    )


def has_options(launch: LinearLaunch, options: Options, *, of_backward: bool = False) -> bool:
    """Return whether there is a bias, an option of the loss or a result besides loss and log-sum-exp; each takes tiles.

    In a backward (``of_backward``), a temperature or a scale of the logits takes no tiles and does not count.
    """
    usual = LossOptions()
    recipe = replace(options.recipe, ignore_index=usual.ignore_index)
    if of_backward:
        recipe = replace(recipe, temperature=usual.temperature)
    return launch.bias_hbm is not None or options.is_weighted or recipe != usual or options.wanted != Wanted()


class _Part(NamedTuple):
    """Positions whose numbers are loaded or stored in one transfer.

    Attributes:
        rows_hbm: the numbers, [partitions, tiles, ids].
        first, end: the number of the first tile, and of the tile after the last.
    """

    rows_hbm: nl.NkiTensor
    first: int
    end: int


def _parts(matrix_hbm: nl.NkiTensor) -> list[_Part]:
    """Return views of the whole tiles of positions, and of the remainder."""
    positions = matrix_hbm.shape[0]
    tiles, rest = divmod(positions, PARTITIONS)
    parts: list[_Part] = []
    if tiles > 0:
        whole_hbm = matrix_hbm.slice(0, 0, tiles * PARTITIONS).reshape_dim(0, (tiles, PARTITIONS))
        parts.append(_Part(whole_hbm.permute((1, 0, 2)), 0, tiles))
    if rest > 0:
        rest_hbm = matrix_hbm.slice(0, tiles * PARTITIONS, positions)
        parts.append(_Part(rest_hbm.expand_dim(1), tiles, tiles + 1))
    return parts


def load_ids(matrix_hbm: nl.NkiTensor, fill: float, columns: int | None = None) -> nl.NkiTensor:
    """Return the numbers of all positions, float32 [128, tiles, columns].

    ``[p, t]`` are the numbers of position ``128 t + p``.

    Args:
        matrix_hbm: [positions, ids], of 4 bytes each; a number that float32 cannot hold is rounded.
        fill: the value beyond the last position and the last id.
        columns: the number of columns, at least ``ids``; None: ``ids``.
    """
    positions, ids = matrix_hbm.shape
    columns = ids if columns is None else columns
    tiles = -(-positions // PARTITIONS)
    loaded_sbuf = nl.ndarray((PARTITIONS, tiles, columns), dtype=matrix_hbm.dtype, buffer=nl.sbuf)
    if columns > ids:
        nisa.memset(dst=loaded_sbuf, value=fill)
    elif positions % PARTITIONS > 0:
        nisa.memset(dst=loaded_sbuf[:, tiles - 1 : tiles], value=fill)
    for part in _parts(matrix_hbm):
        rows = part.rows_hbm.shape[0]
        nisa.dma_copy(dst=loaded_sbuf[0:rows, part.first : part.end, 0:ids], src=part.rows_hbm)
    return cast(loaded_sbuf, nl.float32)


def store_ids(matrix_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
    """Store float32 [128, tiles, ids] as a float32 matrix [positions, ids]; the reverse of :func:`load_ids`."""
    for part in _parts(matrix_hbm):
        rows = part.rows_hbm.shape[0]
        nisa.dma_copy(dst=part.rows_hbm, src=values_sbuf[0:rows, part.first : part.end])


def one_or_several(matrix_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return a matrix [positions, ids] as it is, or as a vector [positions] if there is one id."""
    return matrix_hbm.select(1, 0) if matrix_hbm.shape[1] == 1 else matrix_hbm


def load_targets(launch: LinearLaunch, block: Block) -> nl.NkiTensor:
    """Return the targets of a block, float32 [128, tiles], exact up to class 2^24; [128, tiles, ids] for ids."""
    targets_hbm = block.of(launch.targets_hbm)
    return load_positions(targets_hbm, fill=-1.0) if launch.ids == 1 else load_ids(targets_hbm, fill=-1.0)


def _masks(targets_sbuf: nl.NkiTensor, options: Options) -> TargetMasks:
    masks = TargetMasks(*(nl.ndarray(targets_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf) for _ in range(2)))
    first, last = options.classes.first, options.classes.first + options.classes.count - 1
    nisa.tensor_scalar(
        dst=masks.valid_sbuf, data=targets_sbuf, op0=nl.not_equal, operand0=float(options.recipe.ignore_index)
    )
    is_held_sbuf = float32_like(targets_sbuf)
    nisa.tensor_scalar(dst=is_held_sbuf, data=targets_sbuf, op0=nl.greater_equal, operand0=float(first))
    nisa.scalar_tensor_tensor(
        dst=is_held_sbuf,
        data=targets_sbuf,
        op0=nl.less_equal,
        operand0=float(last),
        op1=nl.multiply,
        operand1=is_held_sbuf,
    )
    nisa.scalar_tensor_tensor(
        dst=masks.local_sbuf,
        data=targets_sbuf,
        op0=nl.not_equal,
        operand0=float(options.recipe.ignore_index),
        op1=nl.multiply,
        operand1=is_held_sbuf,
    )
    return masks


def weights_of_targets(class_weight_hbm: nl.NkiTensor, targets_sbuf: nl.NkiTensor, classes: Classes) -> nl.NkiTensor:
    """Return the class weights of targets, float32 [128, tiles].

    A target in another shard gets the weight of the nearest class of this shard.
    """
    index_sbuf = nl.ndarray(targets_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    first, count = float(classes.first), float(classes.count)
    nearest_sbuf = float32_like(targets_sbuf)
    nisa.tensor_scalar(
        dst=nearest_sbuf, data=targets_sbuf, op0=nl.subtract, operand0=first, op1=nl.maximum, operand1=0.0
    )
    nisa.tensor_scalar(dst=index_sbuf, data=nearest_sbuf, op0=nl.minimum, operand0=count - 1.0)
    weights_sbuf = float32_like(targets_sbuf)
    for tile in range(targets_sbuf.shape[1]):
        nisa.dma_copy(
            dst=weights_sbuf[:, tile : tile + 1],
            src=vector_elements(class_weight_hbm, index_sbuf[:, tile : tile + 1]),
        )
    return weights_sbuf


def target_values(
    launch: LinearLaunch, options: Options, targets_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor
) -> TargetValues:
    """Return which targets are valid, and their class weights; their logits are still to be found."""
    masks = _masks(targets_sbuf, options)
    weights_sbuf = None
    if launch.class_weight_hbm is not None:
        weights_sbuf = weights_of_targets(launch.class_weight_hbm, targets_sbuf, options.classes)
    return TargetValues(logits_sbuf, masks, weights_sbuf)
