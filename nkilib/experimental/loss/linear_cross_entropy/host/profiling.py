# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modelled times of launches, computed from shapes alone, on the host, with the simulator.

:func:`profile_linear_launch` profiles linear cross-entropy, :func:`profile_token_scores_launch` token scores. N
positions, D features, V classes, K target ids per position; X and W are the operands.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from nkilib.core.host.launchable import Launchable
from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import BACKWARD, FORWARD, FORWARD_BACKWARD
from nkilib.simulator import ModelParameters, Profile, profile, spec, using
from nkilib.simulator.terms.dtypes import as_dtype

KERNELS: Final[dict[str, Launchable[..., Any]]] = {
    FORWARD: linear_cross_entropy_forward,
    BACKWARD: linear_cross_entropy_backward,
    FORWARD_BACKWARD: linear_cross_entropy_forward_backward,
}
SCORE_KERNELS: Final[dict[str, Launchable[..., Any]]] = {
    FORWARD: linear_token_scores_forward,
    BACKWARD: linear_token_scores_backward,
}
_CORES: Final = 2


class _Sizes(NamedTuple):
    """The sizes N, D and V of a launch, and the layout of W."""

    positions: int
    features: int
    classes: int
    weight_layout: str


def _profile(
    launched: Any,
    sizes: _Sizes,
    targets: tuple[int, ...],
    dtype: Any,
    target: str,
    parameters: ModelParameters | None,
    arguments: dict[str, Any],
) -> Profile:
    operand, layout = as_dtype(dtype), sizes.weight_layout
    shape = (sizes.classes, sizes.features) if layout == "vd" else (sizes.features, sizes.classes)
    with using(target=target):
        return profile(
            launched,
            spec((sizes.positions, sizes.features), operand),
            spec(shape, operand),
            spec(targets, "int32"),
            parameters=parameters,
            weight_layout=layout,
            **arguments,
        )


def profile_linear_launch(
    num_positions: int,
    num_features: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    tiling: LinearTiling | None = None,
    *,
    target: str = "trn2",
    cores: int = _CORES,
    weight_layout: str = "vd",
    parameters: ModelParameters | None = None,
    **options: Any,
) -> Profile:
    """Return the profile of a kernel on X [N, D] and W [V, D] or [D, V]; modelled, not measured.

    Example::

        print(profile_linear_launch(4096, 4096, 128256, "bfloat16", "backward"))

    Args:
        num_positions, num_features, vocab_size: N, D, V.
        dtype: the dtype of X and W, an NKI dtype or its name.
        direction: ``"forward"``, ``"backward"`` or ``"forward_backward"``.
        tiling: the tiling of the launch; None for the choice of ``choose_linear_tiling``.
        target: the generation of the device.
        cores: the number of cores of the launch.
        weight_layout: ``"vd"`` or ``"dv"``, the layout of W.
        parameters: the assumptions of the model where nothing is published.
        options: further keyword arguments of the kernel; a ``spec`` of the simulator stands for an array.

    Raises:
        ValueError: for another direction.
        AssertionError: if the kernel does not accept the sizes.
        NkiValidationError: if the hardware does not accept them.
    """
    if direction not in KERNELS:
        raise ValueError(f"profile_linear_launch: direction must be one of {', '.join(KERNELS)}, got {direction!r}")
    of_positions = spec((num_positions,), "float32")
    further: dict[str, Any] = {} if tiling is None else tiling._asdict()
    if direction == BACKWARD:
        further |= {"lse_hbm": of_positions, "grad_loss_hbm": of_positions}
    elif direction == FORWARD_BACKWARD and "grad_scale_hbm" not in options:
        further["grad_scale"] = 1.0 / num_positions
    sizes = _Sizes(num_positions, num_features, vocab_size, weight_layout)
    arguments = {**further, **options}
    return _profile(KERNELS[direction][cores], sizes, (num_positions,), dtype, target, parameters, arguments)


def profile_token_scores_launch(
    num_positions: int,
    num_features: int,
    vocab_size: int,
    ids: int,
    dtype: Any,
    direction: str,
    tiling: LinearTiling | None = None,
    *,
    target: str = "trn2",
    cores: int = _CORES,
    weight_layout: str = "vd",
    parameters: ModelParameters | None = None,
    **options: Any,
) -> Profile:
    """Return the profile of a kernel of K target ids per position; modelled, not measured.

    Example::

        print(profile_token_scores_launch(2048, 2048, 151936, 64, "bfloat16", "forward"))

    Args:
        num_positions, num_features, vocab_size, ids: N, D, V, K.
        direction: ``"forward"`` or ``"backward"``.
        dtype, tiling, target, cores, weight_layout, parameters, options: see :func:`profile_linear_launch`.

    Raises:
        ValueError: for another direction.
        AssertionError: if the kernel does not accept the sizes.
        NkiValidationError: if the hardware does not accept them.
    """
    if direction not in SCORE_KERNELS:
        known = ", ".join(SCORE_KERNELS)
        raise ValueError(f"profile_token_scores_launch: direction must be one of {known}, got {direction!r}")
    further: dict[str, Any] = {} if tiling is None else tiling._asdict()
    if direction == BACKWARD:
        of_ids = spec((num_positions, ids), "float32")
        further |= {"lse_hbm": spec((num_positions,), "float32"), "grad_logprob_hbm": of_ids}
    sizes = _Sizes(num_positions, num_features, vocab_size, weight_layout)
    arguments = {**further, **options}
    return _profile(SCORE_KERNELS[direction][cores], sizes, (num_positions, ids), dtype, target, parameters, arguments)
