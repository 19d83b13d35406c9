# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a launch of the kernels is modelled to take, from shapes alone: for host code, and in the simulator only."""

from __future__ import annotations

from typing import Any

from nkilib.core.host.sized_loss import launch_tensors
from nkilib.experimental.loss.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)
from nkilib.experimental.loss.cross_entropy.host.sizes import size_of
from nkilib.experimental.loss.cross_entropy.host.tiling import CORES, Tiling
from nkilib.simulator import ModelParameters, Profile, profile, using
from nkilib.simulator.profiling.trips import AskedTrips
from nkilib.simulator.terms.dtypes import as_dtype


def profile_launch(
    num_positions: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    tiling: Tiling,
    *,
    target: str = "trn2",
    cores: int = CORES,
    parameters: ModelParameters | None = None,
    extended: bool = False,
    trips: AskedTrips | None = None,
    **options: Any,
) -> Profile:
    """The profile of a kernel on logits [N, V]; modelled, not measured.

    Example::

        launch = 4096, 128256, "bfloat16", "forward"
        print(profile_launch(*launch, choose_tiling(*launch)))

    Args:
        num_positions: N.
        vocab_size: V.
        dtype: of logits and tiles, an NKI type or the name of one; targets are int32, and the backward's lse float32.
        direction: ``"forward"`` or ``"backward"``.
        tiling: how the launch is cut up, whether ``choose_tiling`` would choose so or not.
        target: the generation.
        cores: of the launch.
        parameters: what the model assumes where nothing is published.
        extended: of an extended kernel; ``options`` may hold shapes for its further arrays.
        trips: of the forward's loop over positions that are computed anew, as ``profile`` takes them: ``"none"``,
            ``"all"`` or a number; None gives the profile with none, which has that with all as ``with_all_trips``.
        options: further keyword arguments of the kernel.

    Raises:
        AssertionError: if the kernel does not take the sizes.
        NkiValidationError: if the hardware does not.
    """
    tile_dtype, shape = as_dtype(dtype), (num_positions, vocab_size)
    kernel: Any = extended_cross_entropy_forward if extended else cross_entropy_forward
    if direction == "backward":
        kernel = extended_cross_entropy_backward if extended else cross_entropy_backward
    given = launch_tensors(kernel, lambda tensor: size_of(tensor, shape, options), tile_dtype)
    with using(target=target):
        return profile(
            kernel[cores],
            parameters=parameters,
            trips=trips,
            dtype=tile_dtype,
            **tiling._asdict(),
            **{**given, **options},
        )
