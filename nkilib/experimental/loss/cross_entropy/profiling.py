# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled profile of a launch of the cross-entropy kernels, from shapes only. For host code, and in the simulator
only.
"""

from __future__ import annotations

from typing import Any

from nkilib.core.host.loss import launch_tensors
from nkilib.experimental.loss.cross_entropy.registry_entry import (
    cross_entropy_backward,
    cross_entropy_forward,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
    size_of,
)
from nkilib.experimental.loss.cross_entropy.tiling import CORES, Tiling
from nkilib.simulator import ModelParameters, Profile, profile, using
from nkilib.simulator.profiling.profile import AskedTrips
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
    """Return the modelled profile of one launch of a cross-entropy kernel on logits [N, V].

    Example::

        launch = 4096, 128256, "bfloat16", "forward"
        print(profile_launch(*launch, choose_tiling(*launch)))

    Args:
        num_positions: N.
        vocab_size: V.
        dtype: the type of logits and tiles, an NKI type or its name; targets are int32, and the backward's lse float32.
        direction: ``"forward"`` or ``"backward"``.
        tiling: the tiling of the launch; ``choose_tiling`` chooses one.
        target: the generation of the hardware, such as ``"trn2"``.
        cores: the number of cores of the launch.
        parameters: the values that the performance model assumes where no figures are published; None for the defaults.
        extended: whether to profile an extended kernel; ``options`` may hold shapes for the optional tensors of the
            kernel.
        trips: the iterations of the forward's loop over recomputed positions, in the form that ``profile`` accepts:
            ``"none"``, ``"all"`` or a number. None gives the profile with no iterations, whose ``with_all_trips`` is
            the profile with all of them.
        options: further keyword arguments of the kernel.

    Raises:
        AssertionError: if the kernel does not accept the sizes.
        NkiValidationError: if the hardware does not support the sizes.
    """
    tile_dtype, shape = as_dtype(dtype), (num_positions, vocab_size)
    kernel: Any = extended_cross_entropy_forward if extended else cross_entropy_forward
    if direction == "backward":
        kernel = extended_cross_entropy_backward if extended else cross_entropy_backward
    tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, shape, options), tile_dtype)
    with using(target=target):
        return profile(
            kernel[cores],
            parameters=parameters,
            trips=trips,
            dtype=tile_dtype,
            **tiling._asdict(),
            **{**tensors, **options},
        )
