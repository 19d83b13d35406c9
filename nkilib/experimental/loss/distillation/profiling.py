# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled time of a launch of the kernels, from shapes alone: for host code, and in the simulator only."""

from __future__ import annotations

from typing import Any

from nkilib.core.host.loss import launch_tensors
from nkilib.experimental.loss.distillation.registry_entry import distillation_backward, distillation_forward, size_of
from nkilib.simulator import ModelParameters, Profile, profile, spec, using
from nkilib.simulator.profiling.profile import AskedTrips
from nkilib.simulator.terms.dtypes import as_dtype


def profile_distillation_launch(
    num_positions: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    *,
    teacher_dtype: Any = None,
    target: str = "trn2",
    cores: int = 2,
    parameters: ModelParameters | None = None,
    trips: AskedTrips | None = None,
    **options: Any,
) -> Profile:
    """Return the profile of a kernel on logits [N, V]; modelled, not measured.

    Example::

        print(profile_distillation_launch(4096, 32128, "bfloat16", "forward", beta=0.5))

    Args:
        num_positions: N.
        vocab_size: V.
        dtype: the type of the student's logits, and of the teacher's unless ``teacher_dtype`` is passed.
        direction: ``"forward"`` or ``"backward"``.
        teacher_dtype: the type of the teacher's logits.
        target: the generation of the device, such as ``"trn2"``.
        cores: the number of cores of the launch.
        parameters: the assumptions of the model where nothing is published.
        trips: the number of iterations of the forward's loop over recomputed positions, in the form that
            ``profile`` accepts.
        options: further keyword arguments of the kernel, such as ``beta`` and ``chunk_size``.

    Raises:
        AssertionError: if the kernel does not take the arguments.
        NkiValidationError: if the hardware does not accept them.
    """
    is_forward, shape = direction == "forward", (num_positions, vocab_size)
    kernel: Any = distillation_forward if is_forward else distillation_backward
    tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, shape, options), as_dtype(dtype))
    if teacher_dtype is not None:
        tensors["teacher_hbm"] = spec(shape, as_dtype(teacher_dtype))
    with using(target=target):
        asked = trips if is_forward else None
        return profile(kernel[cores], parameters=parameters, trips=asked, **{**tensors, **options})
