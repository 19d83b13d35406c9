"""What a launch of the kernels is modelled to take, from shapes alone: for host code, and in the simulator only."""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.distillation import distillation_backward, distillation_forward
from nkilib.simulator import ModelParameters, Profile, profile, spec, using
from nkilib.simulator.profiling.trips import AskedTrips
from nkilib.simulator.terms.dtypes import as_dtype

_VECTORS_OF_BACKWARD = 6


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
    """The profile of a kernel on logits [N, V]; modelled, not measured.

    Example::

        print(profile_distillation_launch(4096, 32128, "bfloat16", "forward", beta=0.5))

    Args:
        num_positions: N.
        vocab_size: V.
        dtype: of the student's logits, and of the teacher's if those have none of their own.
        direction: ``"forward"`` or ``"backward"``.
        teacher_dtype: of the teacher's logits.
        target: the generation.
        cores: of the launch.
        parameters: what the model assumes where nothing is published.
        trips: of the forward's loop over positions that are computed anew, as ``profile`` takes them.
        options: further keyword arguments of the kernel, such as ``beta`` and ``chunk_size``.

    Raises:
        AssertionError: if the kernel does not take the arguments.
        NkiValidationError: if the hardware does not.
    """
    shape, types = (num_positions, vocab_size), (dtype, dtype if teacher_dtype is None else teacher_dtype)
    logits, vector = [spec(shape, as_dtype(each)) for each in types], spec((num_positions,), "float32")
    with using(target=target):
        if direction == "forward":
            return profile(distillation_forward[cores], *logits, parameters=parameters, trips=trips, **options)
        vectors = [vector] * _VECTORS_OF_BACKWARD
        return profile(distillation_backward[cores], *logits, *vectors, parameters=parameters, **options)
