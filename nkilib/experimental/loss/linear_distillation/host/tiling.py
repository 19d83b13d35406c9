# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tiling of the kernels of two models: arithmetic only.

N positions, V classes, Ds and Dt features of student and teacher; X and W are input and weight of a model.

The functions choose, of the blocks that fit SBUF, those that are estimated to be fastest.
:func:`choose_linear_distillation_tiling` takes the sizes and options of a launch. :func:`forward_tiling` and
:func:`backward_tiling` take the sizes that a traced launch has derived.

A backward of very many positions is split into parts (:func:`pair_parts`). Its time is estimated by
:mod:`nkilib.experimental.loss.linear.tiling`, with the teacher's X^T and W^T in the work of Tensor and the DMA engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from nkilib.core.host.sizes import checked_size, dtype_name
from nkilib.core.plan_limits import PlanLimits, limited_sbuf_bytes, limits_in_force
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes, PairSizes
from nkilib.experimental.loss.linear.block_schedule import POSITIONS_UNSPLIT, PositionParts, position_parts
from nkilib.experimental.loss.linear.launch import (
    CLASSES_FIRST,
    CLASSES_MAX,
    FEATURES_MAX,
    FEATURES_MIN,
    POSITIONS_MAX,
    SBUF_BYTES,
    WEIGHT_LAYOUTS,
    CastBytes,
    LinearTiling,
)
from nkilib.experimental.loss.linear.tiling import BackwardLaunch, choose_backward_tiling, fastest_tiling
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    MEMORY_LIMIT,
    KeptSizes,
    MixtureSizes,
    choose_kept_tiling,
    keeps_scores,
)
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import (
    PairForwardSizes,
    PairNeeds,
    StreamSizes,
    gradient_needs,
)

# Bytes of a partition for X^T and W^T of both models, for 128 positions and classes. Above this size the columns of so
# many positions, with a temperature of each, leave no room for them; then a part has fewer positions.
_MOST_BYTES_OF_FEATURES, _FEW_POSITIONS = 61440, 16384
__all__ = ["BACKWARD", "FORWARD", "MIXTURE", "choose_linear_distillation_tiling"]

FORWARD, BACKWARD, MIXTURE = "forward", "backward", "mixture"
_CALLER = "choose_linear_distillation_tiling"
_ITEMSIZES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


def pair_parts(num_positions: int, student_features: int, teacher_features: int, feature_bytes: int) -> PositionParts:
    """Return the parts into which the positions of a backward are split: one, or several for very many positions.

    Args:
        num_positions: N.
        student_features, teacher_features: Ds and Dt.
        feature_bytes: the bytes of a row of X of both models, in the dtypes of their products.
    """
    unsplit = POSITIONS_UNSPLIT if feature_bytes <= _MOST_BYTES_OF_FEATURES else _FEW_POSITIONS
    return position_parts(num_positions, max(student_features, teacher_features), unsplit=unsplit)


@lru_cache(maxsize=1024)
def _chosen_backward(launch: BackwardLaunch, limits: PlanLimits) -> LinearTiling:
    # The choice depends on the limits, which are an argument so that the key of the cache includes them.
    try:
        return choose_backward_tiling(launch)
    except ValueError as error:
        sizes = launch.sizes
        teacher = sum(pair.features * pair.itemsize for pair in sizes.further)
        raise ValueError(
            f"choose_linear_distillation_tiling: X^T and W^T of both models must leave room in SBUF, "
            f"{launch.available_bytes} bytes of a partition, and take {sizes.num_features * sizes.itemsize} bytes of "
            f"the student and {teacher} of the teacher each for 128 positions and classes; let the products be "
            f"bfloat16, by compute_dtype"
        ) from error


def backward_tiling(sizes: BackwardSizes, cores: int, target: str) -> LinearTiling:
    """Return the tiling of a backward. Results are cached.

    Args:
        sizes: the sizes of the launch, or of a part of the positions if they are split.
        cores: the number of cores of the launch.
        target: ``"trn2"`` or ``"trn3"``.

    Raises:
        ValueError: if not even the smallest blocks fit.
    """
    return _chosen_backward(
        BackwardLaunch(sizes, cores, target, limited_sbuf_bytes(SBUF_BYTES[target])), limits_in_force()
    )


class _Launch(NamedTuple):
    """The checked arguments of :func:`choose_linear_distillation_tiling`.

    Attributes:
        num_positions, vocab_size: N and V.
        student, teacher: the sizes of each model's operands in a forward.
        layouts: the layouts of the student's and the teacher's weight.
        cores, target, extended, beta, memory_limit: the options of the launch.
    """

    num_positions: int
    vocab_size: int
    student: StreamSizes
    teacher: StreamSizes
    layouts: tuple[str, str]
    cores: int
    target: str
    extended: bool
    beta: float
    memory_limit: int


@lru_cache(maxsize=1024)
def _chosen_forward(sizes: PairForwardSizes | KeptSizes, sbuf_bytes: int, limits: PlanLimits) -> LinearTiling:
    # The choice depends on the limits, which are an argument so that the key of the cache includes them.
    if isinstance(sizes, KeptSizes):
        return choose_kept_tiling(sizes, sbuf_bytes)
    return fastest_tiling(sizes, sbuf_bytes)


def forward_tiling(sizes: PairForwardSizes | KeptSizes, target: str) -> LinearTiling:
    """Return the tiling of a forward; ``target`` is ``"trn2"`` or ``"trn3"``. Results are cached."""
    return _chosen_forward(sizes, limited_sbuf_bytes(SBUF_BYTES[target]), limits_in_force())


def _stream(features: int, product: str, operands: list[str], layout: str) -> StreamSizes:
    casts = CastBytes(*(0 if operand == product else _ITEMSIZES[operand] for operand in operands))
    staging = casts.forward_staging(layout == CLASSES_FIRST)
    return StreamSizes(features, _ITEMSIZES[product], weight_itemsize=casts.weight, staging_bytes=staging)


def _within(name: str, value: int, least: int, most: int) -> int:
    size = checked_size(_CALLER, name, value, "operands")
    if not least <= size <= most:
        raise ValueError(f"{_CALLER}: {name} must be from {least} to {most}, got {size}")
    return size


def _forward_sizes(launch: _Launch, mixed: bool) -> PairForwardSizes:
    # ``mixed``: the sizes of the first pass for a mixture.
    needs = PairNeeds.everything(mixed) if launch.extended else PairNeeds(mixed=mixed, reverse=launch.beta == 1.0)
    return PairForwardSizes(
        launch.num_positions,
        launch.vocab_size,
        launch.student,
        launch.teacher,
        launch.cores,
        needs.of_products(launch.student.products + launch.teacher.products),
    )


def _choose_for_mixture(launch: _Launch) -> LinearTiling:
    sizes = MixtureSizes(_forward_sizes(launch, mixed=True))
    return fastest_tiling(sizes, limited_sbuf_bytes(SBUF_BYTES[launch.target]))


def _choose_for_forward(launch: _Launch) -> LinearTiling:
    mixed = 0.0 < launch.beta < 1.0
    sizes = _forward_sizes(launch, mixed)
    if mixed and keeps_scores(launch.num_positions, launch.vocab_size, launch.memory_limit):
        return forward_tiling(KeptSizes(sizes, launch.memory_limit), launch.target)
    return forward_tiling(sizes, launch.target)


def _choose_for_backward(launch: _Launch) -> LinearTiling:
    # If the positions are split into parts, the tiling is that of one part.
    mixed, reverse = 0.0 < launch.beta < 1.0, launch.beta == 1.0
    student, teacher = launch.student, launch.teacher
    first, teacher_first = (layout == CLASSES_FIRST for layout in launch.layouts)
    feature_bytes = student.num_features * student.itemsize + teacher.num_features * teacher.itemsize
    parts = pair_parts(launch.num_positions, student.num_features, teacher.num_features, feature_bytes)
    further = PairSizes.of_weight(teacher.num_features, teacher.itemsize, teacher_first, teacher.weight_itemsize)
    staging = CastBytes(weight=student.weight_itemsize).backward_staging(first)
    needs = PairNeeds.everything(mixed) if launch.extended else PairNeeds(mixed=mixed, reverse=reverse)
    sizes = BackwardSizes(
        parts.size,
        student.num_features,
        launch.vocab_size,
        student.itemsize,
        first,
        gradient_needs(replace(needs, target=launch.extended)),
        parts.is_split or launch.extended,
        weight_itemsize=student.weight_itemsize,
        staging_bytes=max(staging, further.staging_bytes),
        further=(further,),
    )
    return backward_tiling(sizes, launch.cores, launch.target)


_CHOICES: Final[dict[str, Callable[[_Launch], LinearTiling]]] = {
    FORWARD: _choose_for_forward,
    BACKWARD: _choose_for_backward,
    MIXTURE: _choose_for_mixture,
}


def choose_linear_distillation_tiling(
    num_positions: int,
    student_features: int,
    teacher_features: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    *,
    teacher_dtype: Any = None,
    cores: int = 2,
    target: str = "trn2",
    student_weight_layout: str = "vd",
    teacher_weight_layout: str = "vd",
    extended: bool = False,
    beta: float = 0.0,
    memory_limit: int | None = None,
    student_input_dtype: Any = None,
    student_weight_dtype: Any = None,
    teacher_input_dtype: Any = None,
    teacher_weight_dtype: Any = None,
) -> LinearTiling:
    """Return the tiling with which a kernel is, in the model, fastest or nearly so; the kernels use it by default.

    The choice is modelled, not measured. Results are cached.

    Example::

        tiling = choose_linear_distillation_tiling(2048, 1024, 2048, 151936, nl.bfloat16, "forward")
        results = linear_distillation_forward[2](xs, ws, xt, wt, **tiling._asdict())

    Args:
        num_positions: N, rows of both inputs, 1 to 2^31 - 1.
        student_features, teacher_features: Ds and Dt, columns of the inputs, 16 to 16,384.
        vocab_size: V, classes of both weights, 1 to 2^24.
        dtype: the dtype of the student's products, bfloat16, float16 or float32: an NKI, numpy or torch dtype, or a
            string.
        direction: ``"forward"``, ``"backward"`` or ``"mixture"``, the sums of a mixture over a shard.
        teacher_dtype: the dtype of the teacher's products; None for ``dtype``.
        cores: the number of cores of the launch, 1 or 2.
        target: ``"trn2"`` or ``"trn3"``.
        student_weight_layout, teacher_weight_layout: ``"vd"`` or ``"dv"``.
        extended: whether the launch has a bias, a softcap, a logit scale, a temperature or a result at the labels; the
            choice fits any of them. ``ignore_index`` and row weights are not such options.
        beta, memory_limit: the arguments of ``linear_distillation_forward``; a divergence from a mixture (beta between
            0 and 1) has a second pass over kept scores.
        student_input_dtype, student_weight_dtype, teacher_input_dtype, teacher_weight_dtype: the dtypes of the operands
            if the kernel is given a ``compute_dtype``, which is ``dtype`` in this case; None for the dtype of the
            products.

    Returns:
        The tiling, which the kernels accept for such a launch on the target.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is out of range, or another argument is unknown.
    """
    positions, classes, *features = [
        _within(name, value, least, most)
        for name, value, least, most in (
            ("num_positions", num_positions, 1, POSITIONS_MAX),
            ("vocab_size", vocab_size, 1, CLASSES_MAX),
            ("student_features", student_features, FEATURES_MIN, FEATURES_MAX),
            ("teacher_features", teacher_features, FEATURES_MIN, FEATURES_MAX),
        )
    ]
    products = [dtype_name(dtype), dtype_name(dtype if teacher_dtype is None else teacher_dtype)]
    operands = [
        [name if operand is None else dtype_name(operand) for operand in of_model]
        for name, of_model in zip(
            products,
            ((student_input_dtype, student_weight_dtype), (teacher_input_dtype, teacher_weight_dtype)),
            strict=True,
        )
    ]
    layouts = [student_weight_layout, teacher_weight_layout]
    for argument, value, known in (
        ("dtype", products[0], tuple(_ITEMSIZES)),
        ("teacher_dtype", products[1], tuple(_ITEMSIZES)),
        ("student_input_dtype", operands[0][0], tuple(_ITEMSIZES)),
        ("student_weight_dtype", operands[0][1], tuple(_ITEMSIZES)),
        ("teacher_input_dtype", operands[1][0], tuple(_ITEMSIZES)),
        ("teacher_weight_dtype", operands[1][1], tuple(_ITEMSIZES)),
        ("direction", direction, tuple(_CHOICES)),
        ("cores", cores, (1, 2)),
        ("target", target, tuple(SBUF_BYTES)),
        ("student_weight_layout", layouts[0], WEIGHT_LAYOUTS),
        ("teacher_weight_layout", layouts[1], WEIGHT_LAYOUTS),
    ):
        if value not in known:
            raise ValueError(f"{_CALLER}: {argument} must be one of {', '.join(map(str, known))}, got {value!r}")
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"{_CALLER}: beta must be from 0 to 1, got {beta!r}")
    student, teacher = (
        _stream(features[model], products[model], operands[model], layouts[model]) for model in range(2)
    )
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    both_layouts = student_weight_layout, teacher_weight_layout
    launch = _Launch(
        positions, classes, student, teacher, both_layouts, cores, target, bool(extended), float(beta), limit
    )
    return _CHOICES[direction](launch)
