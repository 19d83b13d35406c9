# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of a tiling for the linear cross-entropy kernels: arithmetic only.

Of the blocks that fit SBUF, those with the least estimated time are chosen: for the forward in :mod:`.forward_tiling`,
for gradients in :mod:`nkilib.experimental.loss.linear.host.backward_tiling`. ``nkilib.simulator.profile`` models times;
tests check the choice against it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from nkilib.core.host.sizes import checked_size, dtype_name
from nkilib.core.plan_limits import PlanLimits, limited_sbuf_bytes, limits_in_force
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.tile_needs import TileNeeds
from nkilib.experimental.loss.linear.forward.plan import fastest_tiling
from nkilib.experimental.loss.linear.host.backward_tiling import BackwardLaunch, choose_backward_tiling
from nkilib.experimental.loss.linear.shared.launch import (
    CLASSES_FIRST,
    CLASSES_MAX,
    FEATURES_MAX,
    FEATURES_MIN,
    POSITIONS_MAX,
    WEIGHT_LAYOUTS,
)
from nkilib.experimental.loss.linear.shared.sizes import SBUF_BYTES, CastBytes, LinearTiling, position_parts
from nkilib.experimental.loss.linear_cross_entropy.backward.tile_needs import tile_needs
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import ForwardSizes
from nkilib.experimental.loss.linear_cross_entropy.host.memory import SCRATCH_BYTES, logits_blocks
from nkilib.experimental.loss.linear_cross_entropy.shared.forward_needs import ForwardNeeds
from nkilib.experimental.loss.linear_cross_entropy.shared.options import IDS_MAX

__all__ = ["BACKWARD", "FORWARD", "FORWARD_BACKWARD", "LinearTiling", "choose_linear_tiling"]

FORWARD, BACKWARD, FORWARD_BACKWARD = "forward", "backward", "forward_backward"
_ITEMSIZES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


class _Launch(NamedTuple):
    """The arguments of :func:`choose_linear_tiling`, validated."""

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
    """Return the tiling with which a kernel is modelled to be fastest, or nearly so; the default of the kernels.

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
            dW. The choice fits any of them. Ignored positions do not count.
        scratch_bytes: the argument ``scratch_bytes`` of ``linear_cross_entropy_forward_backward``.
        input_dtype, weight_dtype: the dtypes of X and W if the kernel is given a ``compute_dtype``, which is ``dtype``
            in this case; None: ``dtype``.
        forward_needs: the options of a forward; None: all of them if ``extended``, else none.
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


def _within(name: str, size: int, least: int, most: int) -> int:
    if not least <= size <= most:
        raise ValueError(f"choose_linear_tiling: {name} must be from {least} to {most}, got {size}")
    return size


@lru_cache(maxsize=1024)
def _chosen(direction: str, launch: _Launch, limits: PlanLimits) -> LinearTiling:
    """Return the tiling of a launch.

    The choice depends on the limits, which are an argument so that the key of the cache includes them.
    """
    return _CHOICES[direction](launch)


def _forward(launch: _Launch) -> LinearTiling:
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


def _backward(launch: _Launch) -> LinearTiling:
    """Return the tiling of the backward: of a part of the positions if they are split."""
    parts = position_parts(launch.num_positions, launch.num_features, launch.ids)
    return _of_gradients(launch._replace(num_positions=parts.size), parts.is_split, keeps_logits=False)


def _of_gradients(launch: _Launch, adds_to_weight: bool, keeps_logits: bool) -> LinearTiling:
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


def _tile_needs(launch: _Launch, keeps_logits: bool) -> TileNeeds:
    """Return the SBUF and instructions for the tiles of the gradient, with every option or with none."""
    has = launch.extended
    return tile_needs(has, has, has, has, ids=launch.ids, keeps_logits=keeps_logits)


def _forward_backward(launch: _Launch) -> LinearTiling:
    """Return the tiling of the gradients of a block of positions whose logits are kept."""
    blocks = logits_blocks(launch.num_positions, launch.num_features, launch.vocab_size, launch.scratch_bytes)
    block = launch._replace(num_positions=min(blocks.positions, launch.num_positions))
    return _of_gradients(block, adds_to_weight=blocks.number > 1, keeps_logits=True)


_CHOICES: Final[dict[str, Callable[[_Launch], LinearTiling]]] = {
    FORWARD: _forward,
    BACKWARD: _backward,
    FORWARD_BACKWARD: _forward_backward,
}
