# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modelled times of launches of the kernels, computed from shapes alone, on the host, with the simulator.

N positions, V classes, Ds and Dt features of student and teacher; X and W are input and weight of a model.
:func:`profile_linear_distillation_launch` models the three kernels.
"""

from __future__ import annotations

from typing import Any, Final

from nkilib.core.host.launchable import Launchable
from nkilib.experimental.loss import (
    linear_distillation_backward,
    linear_distillation_forward,
    linear_distillation_mixture,
)
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear_distillation.host.tiling import BACKWARD, FORWARD, MIXTURE
from nkilib.simulator import ModelParameters, Profile, profile, spec, using
from nkilib.simulator.terms.dtypes import as_dtype

KERNELS: Final[dict[str, Launchable[..., Any]]] = {
    FORWARD: linear_distillation_forward,
    BACKWARD: linear_distillation_backward,
    MIXTURE: linear_distillation_mixture,
}
# Arguments for each position: results of the forward, and upstream gradients.
_VECTORS: Final = {FORWARD: 0, MIXTURE: 4, BACKWARD: 6}
_CORES: Final = 2


def profile_linear_distillation_launch(
    num_positions: int,
    student_features: int,
    teacher_features: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    tiling: LinearTiling | None = None,
    *,
    teacher_dtype: Any = None,
    target: str = "trn2",
    cores: int = _CORES,
    student_weight_layout: str = "vd",
    teacher_weight_layout: str = "vd",
    parameters: ModelParameters | None = None,
    **options: Any,
) -> Profile:
    """Return the profile of a kernel on the operands of both models; modelled, not measured.

    Example::

        print(profile_linear_distillation_launch(2048, 1024, 2048, 151936, "bfloat16", "forward", beta=1.0))

    Args:
        num_positions, student_features, teacher_features, vocab_size: N, Ds, Dt, V.
        dtype: the dtype of X and W: an NKI dtype or its name.
        direction: ``"forward"``, ``"backward"`` or ``"mixture"``, the sums of a shard of the vocabulary.
        tiling: the tiling of the launch; None for the result of ``choose_linear_distillation_tiling``.
        teacher_dtype: the dtype of the teacher's X and W; None for ``dtype``.
        target: the generation of the device.
        cores: the number of cores of the launch.
        student_weight_layout, teacher_weight_layout: ``"vd"`` or ``"dv"``, the layouts of W.
        parameters: the assumptions of the performance model where nothing is published.
        options: further keyword arguments of the kernel, such as ``beta``; tensors are given as specifications
            (:func:`nkilib.simulator.spec`).

    Raises:
        ValueError: for another direction.
        AssertionError: if the kernel does not accept the sizes.
        NkiValidationError: if the hardware does not accept them.
    """
    if direction not in KERNELS:
        raise ValueError(
            f"profile_linear_distillation_launch: direction must be one of {', '.join(KERNELS)}, got {direction!r}"
        )
    operands = []
    for features, layout, of_model in (
        (student_features, student_weight_layout, dtype),
        (teacher_features, teacher_weight_layout, dtype if teacher_dtype is None else teacher_dtype),
    ):
        shape = (vocab_size, features) if layout == "vd" else (features, vocab_size)
        operands += [spec((num_positions, features), as_dtype(of_model)), spec(shape, as_dtype(of_model))]
    arguments: dict[str, Any] = {} if tiling is None else tiling._asdict()
    arguments |= {
        "student_weight_layout": student_weight_layout,
        "teacher_weight_layout": teacher_weight_layout,
        **options,
    }
    with using(target=target):
        vectors = [spec((num_positions,), "float32")] * _VECTORS[direction]
        return profile(KERNELS[direction][cores], *operands, *vectors, parameters=parameters, **arguments)
