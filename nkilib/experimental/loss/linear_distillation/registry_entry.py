# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry entry of distillation from hidden states: the kernels with guarantees and work. For host code.

N positions, D features, V classes; X is an input; dX and dW are the gradients of the student's input and weight.

Tests check each guarantee. The work does not depend on the tiling:

- HBM: each operand is read once, each result written once. Logits that a forward keeps for a mixture do not count.
- Multiply-adds: N V D for the logits of each model, and N V D of the student for each of dX and dW.
- Activation functions per logit in a forward: two exponentials, one per model; for a divergence from a mixture, two
  more exponentials and a softplus.
- Activation functions per logit in a backward: the exponentials of both models for KL(teacher || student), the
  student's for KL(student || teacher), the student's and a softplus for a mixture.
- Each model with a softcap adds one activation function per logit.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.host.launchable import launchable
from nkilib.core.host.sizes import dtype_name
from nkilib.experimental.loss.linear.block_schedule import position_parts
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear.tiling import backward_bytes, split_backward_bytes
from nkilib.experimental.loss.linear_distillation import kernels
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import most_kept_bytes

# Divergence, entropy, moment, and maximum and log-sum of both models.
_RESULTS = 7

# Two float32 sums of dW of a block of classes, of each core.
_WEIGHT_SUM_BYTES = 64 * 2**20


def _caps(*softcaps: float | None) -> int:
    return sum(softcap is not None for softcap in softcaps)


def _elements(input_hbm: Any, weight_hbm: Any) -> int:
    positions, features = input_hbm.shape
    elements: int = positions * prod(weight_hbm.shape) // features
    return elements


def _bytes(*arrays: Any) -> int:
    from nkilib.simulator.terms.dtypes import as_dtype

    return sum(prod(array.shape) * as_dtype(array.dtype).itemsize for array in arrays if array is not None)


def _product_dtype(student_hbm: Any, teacher_hbm: Any, compute_dtype: Any) -> Any:
    # If the models' dtypes differ, the faster one, so that the time bound stays a lower bound.
    from nkilib.simulator.terms.dtypes import as_dtype

    if compute_dtype is not None:
        return as_dtype(compute_dtype)
    student, teacher = as_dtype(student_hbm.dtype), as_dtype(teacher_hbm.dtype)
    return teacher if teacher.itemsize < student.itemsize else student


def pair_forward_work(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    teacher_input_hbm: Any,
    teacher_weight_hbm: Any,
    labels_hbm: Any = None,
    student_bias_hbm: Any = None,
    teacher_bias_hbm: Any = None,
    row_weight_hbm: Any = None,
    beta: float = 0.0,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    with_logprob: bool = False,
    with_target: bool = False,
    num_classes: int | None = None,
    compute_dtype: Any = None,
    **_: Any,
) -> Work:
    """Return the work of ``linear_distillation_forward``, from the kernel's parameters."""
    operands = (student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm)
    vectors = (labels_hbm, student_bias_hbm, teacher_bias_hbm, row_weight_hbm)
    results = (_RESULTS + bool(with_logprob) + bool(with_target)) * student_input_hbm.shape[0]
    elements = _elements(student_input_hbm, student_weight_hbm)
    has_mixture = 0.0 < beta < 1.0 and num_classes in (None, elements // student_input_hbm.shape[0])
    functions = (5 if has_mixture else 2) + _caps(student_logit_softcap, teacher_logit_softcap)
    return Work(
        hbm_bytes=_bytes(*operands, *vectors) + FLOAT32_BYTES * results,
        exponentials=functions * elements,
        multiply_adds=elements * (student_input_hbm.shape[1] + teacher_input_hbm.shape[1]),
        dtype=_product_dtype(student_input_hbm, teacher_input_hbm, compute_dtype),
    )


def mixture_work(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    teacher_input_hbm: Any,
    teacher_weight_hbm: Any,
    student_maximum_hbm: Any,
    student_log_sum_hbm: Any,
    teacher_maximum_hbm: Any,
    teacher_log_sum_hbm: Any,
    student_bias_hbm: Any = None,
    teacher_bias_hbm: Any = None,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    compute_dtype: Any = None,
    **_: Any,
) -> Work:
    """Return the work of ``linear_distillation_mixture``, from the kernel's parameters."""
    operands = (student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm)
    vectors = (student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm)
    elements = _elements(student_input_hbm, student_weight_hbm)
    return Work(
        hbm_bytes=_bytes(*operands, *vectors, student_bias_hbm, teacher_bias_hbm)
        + 4 * FLOAT32_BYTES * student_input_hbm.shape[0],
        exponentials=(3 + _caps(student_logit_softcap, teacher_logit_softcap)) * elements,
        multiply_adds=elements * (student_input_hbm.shape[1] + teacher_input_hbm.shape[1]),
        dtype=_product_dtype(student_input_hbm, teacher_input_hbm, compute_dtype),
    )


def pair_backward_work(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    teacher_input_hbm: Any,
    teacher_weight_hbm: Any,
    moment_hbm: Any,
    student_maximum_hbm: Any,
    student_log_sum_hbm: Any,
    teacher_maximum_hbm: Any,
    teacher_log_sum_hbm: Any,
    grad_divergence_hbm: Any,
    labels_hbm: Any = None,
    student_bias_hbm: Any = None,
    teacher_bias_hbm: Any = None,
    row_weight_hbm: Any = None,
    grad_logprob_hbm: Any = None,
    beta: float = 0.0,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    compute_dtype: Any = None,
    grad_input_wanted: bool = True,
    grad_weight_wanted: bool = True,
    grad_bias_wanted: bool | None = None,
    grad_weight_sum_hbm: Any = None,
    grad_input_float32: bool = False,
    **_: Any,
) -> Work:
    """Return the work of ``linear_distillation_backward``, from the kernel's parameters."""
    operands = (student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm)
    statistics = (moment_hbm, student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm)
    upstream = (grad_divergence_hbm, grad_logprob_hbm, labels_hbm, row_weight_hbm)
    elements = _elements(student_input_hbm, student_weight_hbm)
    of_student, of_teacher = student_input_hbm.shape[1], teacher_input_hbm.shape[1]
    products = 1 + bool(grad_input_wanted) + bool(grad_weight_wanted)
    gradients = 0
    if grad_input_wanted:
        wide = FLOAT32_BYTES * prod(student_input_hbm.shape)
        gradients += wide if grad_input_float32 else _bytes(student_input_hbm)
    if grad_weight_wanted:
        gradients += _bytes(student_weight_hbm) if grad_weight_sum_hbm is None else 2 * _bytes(grad_weight_sum_hbm)
    if student_bias_hbm is not None and grad_bias_wanted in (None, True):
        gradients += FLOAT32_BYTES * prod(student_bias_hbm.shape)
    functions = (1 if beta == 1.0 else 2) + _caps(student_logit_softcap, teacher_logit_softcap)
    return Work(
        hbm_bytes=_bytes(*operands, *statistics, *upstream, student_bias_hbm, teacher_bias_hbm) + gradients,
        exponentials=functions * elements,
        multiply_adds=elements * (products * of_student + of_teacher),
        dtype=_product_dtype(student_input_hbm, teacher_input_hbm, compute_dtype),
    )


def forward_workspace_bytes(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    student_weight_layout: str = "vd",
    beta: float = 0.0,
    num_classes: int | None = None,
    memory_limit: int | None = None,
    **_: Any,
) -> int:
    """Return the bytes of HBM that a forward allocates for kept logits: 0 if beta is 0 or 1."""
    classes = student_weight_hbm.shape[0 if student_weight_layout == "vd" else 1]
    if not 0.0 < beta < 1.0 or num_classes not in (None, classes):
        return 0
    return most_kept_bytes(student_input_hbm.shape[0], classes, memory_limit)


def _copied_bytes(inputs_hbm: tuple[Any, ...], compute_dtype: Any) -> int:
    # The copies of X of both models that are rounded to ``compute_dtype``.
    if compute_dtype is None:
        return 0
    name = dtype_name(compute_dtype)
    itemsize = 4 if name == "float32" else 2
    return itemsize * sum(prod(tensor.shape) for tensor in inputs_hbm if dtype_name(tensor.dtype) != name)


def backward_workspace_bytes(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    teacher_input_hbm: Any,
    teacher_weight_hbm: Any,
    student_weight_layout: str = "vd",
    compute_dtype: Any = None,
    grad_weight_sum_hbm: Any = None,
    grad_input_float32: bool = False,
    cores: int = 1,
    **_: Any,
) -> int:
    """Return the bytes of HBM that a backward allocates, from the kernel's parameters.

    The bytes are a bound for any tiling. They contain float32 sums of dX and dW, copies of both X in ``compute_dtype``
    where the types differ, and, for very many positions, the workspace of the parts that the positions are split into.
    """
    positions, features = student_input_hbm.shape
    classes = student_weight_hbm.shape[0 if student_weight_layout == "vd" else 1]
    copies = _copied_bytes((student_input_hbm, teacher_input_hbm), compute_dtype)
    parts = position_parts(positions, max(features, teacher_input_hbm.shape[1]))
    # The bound for any tiling: a block of positions has whole tiles, and a block of classes at most all classes.
    of_all = LinearTiling(
        PARTITIONS, min(_WEIGHT_SUM_BYTES // (8 * features), PARTITIONS * div_ceil(classes, PARTITIONS))
    )
    if not parts.is_split:
        return copies + backward_bytes(positions, features, *of_all, cores=cores)
    is_wide = grad_input_float32 or dtype_name(student_input_hbm.dtype) == "float32"
    return copies + split_backward_bytes(
        parts,
        features,
        classes,
        of_all,
        input_itemsize=4 if is_wide else 2,
        has_weight_sum=grad_weight_sum_hbm is not None or dtype_name(student_weight_hbm.dtype) == "float32",
        cores=cores,
    )


_MATH = "float32; products in each model's type or in compute_dtype"
_CORES = "on two cores, each core has half of the classes, which splits the sums over the classes differently"
_DZ = "dz = (ceil(D / 128) + 128) u / 2 sum |x w| / T for both models"

LINEAR_DISTILLATION_MIXTURE = Guarantee(
    math=_MATH,
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace="0",
    in_place=None,
    error=(
        "(u a + dz) times each term q log(q/M), plus (u (a_P + a_Q) + dz) times q beta p/M; u = 2^-23, "
        f"a = 8 + 2 max|z|, {_DZ}"
    ),
    notes=(
        "the log-sum-exps are used as given: dividing the sums by the masses removes the effect of their rounding; "
        f"{_CORES}"
    ),
)
LINEAR_DISTILLATION_FORWARD = Guarantee(
    math=_MATH,
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace="with beta between 0 and 1, memory_limit (default 2 GiB) and at most 8 N V, in whole tiles; else 0",
    workspace_bytes=forward_workspace_bytes,
    in_place=None,
    error=(
        "divergence: u (a_P + a_Q) (2 + E|log(P/Q)|) + sum |dD/dz| dz, absolute, with u = 2^-23, a = 8 + 2 max|z| and "
        f"{_DZ}; entropy and log-probability: the errors of linear_cross_entropy_forward"
    ),
    notes=f"no logit is rounded to 16 bits; logits are kept only for a mixture, in float32; {_CORES}",
)
LINEAR_DISTILLATION_BACKWARD = Guarantee(
    math=_MATH,
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace=(
        "4 cores N Ds, plus at most 64 MiB per core if N > position_block; with more than 65,536 positions, twice the "
        "workspace of a part of n <= 16,384 positions, plus 4 n Ds + 4 V Ds + 8 V; with a compute_dtype of s bytes, "
        "also s N D for each X of another type"
    ),
    workspace_bytes=backward_workspace_bytes,
    in_place="grad_weight_sum_hbm",
    error=(
        "dX: sum |W| err(G) + (ceil(V / 128) + 135) u sum |G| |W|, u = 2^-24, plus the rounding of the result; dW: "
        "likewise, with sums over the positions; err(G), the error of G: the error of distillation_backward, with dz, "
        "plus one rounding"
    ),
    notes=(
        "the gradients G of the logits are rounded once, to the type of the student's products; biases are added in "
        "float32, and db of a bias of another type than 16-bit products is summed from unrounded G; "
        f"{_CORES}"
    ),
)

linear_distillation_forward = launchable(
    kernels.linear_distillation_forward, LINEAR_DISTILLATION_FORWARD, pair_forward_work
)
linear_distillation_backward = launchable(
    kernels.linear_distillation_backward, LINEAR_DISTILLATION_BACKWARD, pair_backward_work
)
linear_distillation_mixture = launchable(kernels.linear_distillation_mixture, LINEAR_DISTILLATION_MIXTURE, mixture_work)
