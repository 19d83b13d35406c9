# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry entry of linear cross-entropy and token scores: the kernels to launch, with their guarantees and work.

N positions, D features, V classes; X is the input, dX and dW are the gradients of X and the weight.

- Functions such as :func:`linear_forward_work` return the work of a kernel, whatever its tiling is. The performance
  model computes from the work how fast the hardware could be. Every operand is read from HBM once, and every result is
  written once; logits are not. The logits, dX and dW take N V D multiply-adds each.
- Guarantees such as ``LINEAR_CROSS_ENTROPY_FORWARD`` are claims that tests check. :func:`backward_workspace_bytes` and
  :func:`one_launch_workspace_bytes` return the bytes of HBM that kernels allocate.
- ``LINEAR_CROSS_ENTROPY`` is the entry in the list of losses.

All of it is for host code.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Final, NamedTuple

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.hardware import FLOAT32_BYTES
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Family, Loss, ModelledLaunch
from nkilib.core.host.sizes import dtype_name
from nkilib.experimental.loss.linear.block_schedule import position_parts
from nkilib.experimental.loss.linear.launch import SCRATCH_BYTES, LinearTiling
from nkilib.experimental.loss.linear.tiling import backward_bytes, split_backward_bytes
from nkilib.experimental.loss.linear_cross_entropy import kernels, token_scores_kernels
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import (
    BACKWARD,
    FORWARD_BACKWARD,
    choose_linear_tiling,
    logits_blocks,
    one_launch_bytes,
)


def _bytes(*arrays: Any) -> int:
    from nkilib.simulator.terms.dtypes import as_dtype

    return sum(prod(array.shape) * as_dtype(array.dtype).itemsize for array in arrays if array is not None)


def _dtype(dtype: Any) -> Any:
    from nkilib.simulator.terms.dtypes import as_dtype

    return as_dtype(dtype)


def _work(
    input_hbm: Any,
    compute_dtype: Any,
    elements: int,
    products: int,
    hbm_bytes: int,
    exponentials: int,
    maxima: int = 0,
) -> Work:
    """Return the work of a launch with ``products`` matrix products of N V D multiply-adds; ``elements`` is N V."""
    return Work(
        hbm_bytes=hbm_bytes,
        exponentials=exponentials,
        maxima=maxima,
        multiply_adds=products * elements * input_hbm.shape[1],
        dtype=_dtype(input_hbm.dtype if compute_dtype is None else compute_dtype),
    )


def _elements(input_hbm: Any, weight_hbm: Any) -> int:
    positions, features = input_hbm.shape
    elements: int = positions * prod(weight_hbm.shape) // features
    return elements


def _gradient_bytes(
    input_hbm: Any,
    weight_hbm: Any,
    bias_hbm: Any,
    input_wanted: bool,
    weight_wanted: bool,
    bias_wanted: bool | None,
    weight_sum_hbm: Any = None,
    input_float32: bool = False,
) -> int:
    # A given sum of dW is read and written.
    total = 0
    if input_wanted:
        total += prod(input_hbm.shape) * FLOAT32_BYTES if input_float32 else _bytes(input_hbm)
    if weight_wanted:
        total += _bytes(weight_hbm) if weight_sum_hbm is None else 2 * _bytes(weight_sum_hbm)
    if bias_hbm is not None and bias_wanted in (None, True):
        total += prod(bias_hbm.shape) * FLOAT32_BYTES
    return total


def _exponentials(elements: int, logit_softcap: Any) -> int:
    # An exponential per logit, and a tanh under a cap.
    return elements if logit_softcap is None else 2 * elements


def linear_forward_work(
    input_hbm: Any,
    weight_hbm: Any,
    targets_hbm: Any,
    bias_hbm: Any = None,
    class_weight_hbm: Any = None,
    logit_softcap: Any = None,
    with_argmax: bool = False,
    with_target: bool = False,
    with_entropy: bool = False,
    with_distance_sum: bool = False,
    with_log_sum: bool = False,
    compute_dtype: Any = None,
    with_log_sum_squares: bool = False,
    with_mean_logit: bool = False,
    **_: Any,
) -> Work:
    """Return the work of ``linear_cross_entropy_forward``, from the kernel's parameters."""
    positions = input_hbm.shape[0]
    elements = _elements(input_hbm, weight_hbm)
    results = 2 + 2 * with_target + with_argmax + with_entropy + with_distance_sum + 2 * with_log_sum
    results += with_log_sum_squares + with_mean_logit
    return _work(
        input_hbm,
        compute_dtype,
        elements,
        products=1,
        hbm_bytes=_bytes(input_hbm, weight_hbm, targets_hbm, bias_hbm, class_weight_hbm)
        + results * FLOAT32_BYTES * positions,
        exponentials=_exponentials(elements, logit_softcap),
        maxima=elements if with_argmax else 0,
    )


def linear_backward_work(
    input_hbm: Any,
    weight_hbm: Any,
    targets_hbm: Any,
    lse_hbm: Any,
    grad_loss_hbm: Any,
    bias_hbm: Any = None,
    class_weight_hbm: Any = None,
    grad_lse_hbm: Any = None,
    grad_logprob_hbm: Any = None,
    logit_softcap: Any = None,
    target_weight_hbm: Any = None,
    maximum_hbm: Any = None,
    log_sum_hbm: Any = None,
    grad_input_wanted: bool = True,
    grad_weight_wanted: bool = True,
    grad_bias_wanted: bool | None = None,
    grad_weight_sum_hbm: Any = None,
    grad_input_float32: bool = False,
    compute_dtype: Any = None,
    **_: Any,
) -> Work:
    """Return the work of ``linear_cross_entropy_backward``, from the kernel's parameters."""
    vectors = (lse_hbm, grad_loss_hbm, grad_lse_hbm, grad_logprob_hbm, target_weight_hbm, maximum_hbm, log_sum_hbm)
    elements = _elements(input_hbm, weight_hbm)
    return _work(
        input_hbm,
        compute_dtype,
        elements,
        products=1 + bool(grad_input_wanted) + bool(grad_weight_wanted),
        hbm_bytes=_bytes(input_hbm, weight_hbm, targets_hbm, bias_hbm, class_weight_hbm, *vectors)
        + _gradient_bytes(
            input_hbm,
            weight_hbm,
            bias_hbm,
            grad_input_wanted,
            grad_weight_wanted,
            grad_bias_wanted,
            grad_weight_sum_hbm,
            grad_input_float32,
        ),
        exponentials=_exponentials(elements, logit_softcap),
    )


def linear_scores_forward_work(input_hbm: Any, weight_hbm: Any, targets_hbm: Any, **options: Any) -> Work:
    """Return the work of ``linear_token_scores_forward``, from the kernel's parameters.

    :func:`linear_forward_work` computes it; the targets, log-probabilities and target logits of further ids are added.
    """
    ids, with_target = targets_hbm.shape[1], bool(options.pop("with_target", False))
    work = linear_forward_work(input_hbm, weight_hbm, targets_hbm, **options)
    further = input_hbm.shape[0] * (ids * (1 + with_target) - 1)
    return replace(work, hbm_bytes=work.hbm_bytes + further * FLOAT32_BYTES)


def linear_scores_backward_work(
    input_hbm: Any,
    weight_hbm: Any,
    targets_hbm: Any,
    lse_hbm: Any,
    grad_logprob_hbm: Any = None,
    bias_hbm: Any = None,
    grad_lse_hbm: Any = None,
    entropy_hbm: Any = None,
    grad_entropy_hbm: Any = None,
    **options: Any,
) -> Work:
    """Return the work of ``linear_token_scores_backward``, from the kernel's parameters."""
    work = linear_backward_work(
        input_hbm,
        weight_hbm,
        targets_hbm,
        lse_hbm,
        None,
        bias_hbm,
        None,
        grad_lse_hbm,
        grad_logprob_hbm,
        **options,
    )
    return replace(work, hbm_bytes=work.hbm_bytes + _bytes(entropy_hbm, grad_entropy_hbm))


def linear_forward_backward_work(
    input_hbm: Any,
    weight_hbm: Any,
    targets_hbm: Any,
    bias_hbm: Any = None,
    class_weight_hbm: Any = None,
    logit_softcap: Any = None,
    grad_input_wanted: bool = True,
    grad_weight_wanted: bool = True,
    grad_bias_wanted: bool | None = None,
    compute_dtype: Any = None,
    **_: Any,
) -> Work:
    """Return the work of ``linear_cross_entropy_forward_backward``, from the kernel's parameters.

    Each logit counts one exponential for the sum of its row and one for the softmax. The scratch memory for logits is a
    choice, and does not count as work.
    """
    elements = _elements(input_hbm, weight_hbm)
    return _work(
        input_hbm,
        compute_dtype,
        elements,
        products=1 + bool(grad_input_wanted) + bool(grad_weight_wanted),
        hbm_bytes=_bytes(input_hbm, weight_hbm, targets_hbm, bias_hbm, class_weight_hbm)
        + _gradient_bytes(input_hbm, weight_hbm, bias_hbm, grad_input_wanted, grad_weight_wanted, grad_bias_wanted)
        + 2 * FLOAT32_BYTES * input_hbm.shape[0],
        exponentials=elements + _exponentials(elements, logit_softcap),
    )


class _Launch(NamedTuple):
    """The sizes N, D and V of a launch."""

    positions: int
    features: int
    classes: int

    @classmethod
    def of(cls, input_hbm: Any, weight_hbm: Any, weight_layout: str) -> _Launch:
        positions, features = input_hbm.shape
        return cls(positions, features, weight_hbm.shape[0 if weight_layout == "vd" else 1])


def _copied_bytes(input_hbm: Any, compute_dtype: Any) -> int:
    # The cores share one copy of an X that is rounded to ``compute_dtype``.
    if compute_dtype is None or dtype_name(input_hbm.dtype) == dtype_name(compute_dtype):
        return 0
    itemsize = 4 if dtype_name(compute_dtype) == "float32" else 2
    return itemsize * prod(input_hbm.shape)


def backward_workspace_bytes(
    input_hbm: Any,
    weight_hbm: Any,
    position_block: int | None = None,
    class_block: int | None = None,
    weight_layout: str = "vd",
    grad_weight_sum_hbm: Any = None,
    grad_input_float32: bool = False,
    compute_dtype: Any = None,
    targets_hbm: Any = None,
    cores: int = 1,
    **_: Any,
) -> int:
    """Return the bytes of HBM that a backward allocates, from the kernel's parameters.

    - For each core a float32 sum of dX and, with several blocks of positions, a float32 sum of dW of a class block.
    - A copy of X if X is rounded to ``compute_dtype``.
    - For more than 65,536 positions (fewer with several target ids) the sums over the parts into which they are split.
    """
    launch = _Launch.of(input_hbm, weight_hbm, weight_layout)
    ids = 1 if targets_hbm is None or len(targets_hbm.shape) == 1 else targets_hbm.shape[1]
    chosen = choose_linear_tiling(
        *launch,
        input_hbm.dtype if compute_dtype is None else compute_dtype,
        BACKWARD,
        cores=cores,
        weight_layout=weight_layout,
        weight_dtype=weight_hbm.dtype,
        ids=ids,
    )
    tiling = LinearTiling(position_block or chosen.position_block, class_block or chosen.class_block)
    copies = _copied_bytes(input_hbm, compute_dtype)
    parts = position_parts(launch.positions, launch.features, ids)
    if not parts.is_split:
        return copies + backward_bytes(launch.positions, launch.features, *tiling, cores=cores)
    is_wide = grad_input_float32 or dtype_name(input_hbm.dtype) == "float32"
    return copies + split_backward_bytes(
        parts,
        launch.features,
        launch.classes,
        tiling,
        input_itemsize=4 if is_wide else 2,
        has_weight_sum=grad_weight_sum_hbm is not None or dtype_name(weight_hbm.dtype) == "float32",
        cores=cores,
    )


def one_launch_workspace_bytes(
    input_hbm: Any,
    weight_hbm: Any,
    scratch_bytes: int = SCRATCH_BYTES,
    position_block: int | None = None,
    class_block: int | None = None,
    weight_layout: str = "vd",
    compute_dtype: Any = None,
    cores: int = 1,
    **_: Any,
) -> int:
    """Return the bytes of HBM that a fused forward-backward launch allocates, from the kernel's parameters.

    These are the backward's sums of dX and dW, the logits of a block of positions, the sums of dW and db over the
    blocks, ``grad_scale`` for each core, and a copy of X if X is rounded to ``compute_dtype``.
    """
    launch = _Launch.of(input_hbm, weight_hbm, weight_layout)
    chosen = choose_linear_tiling(
        *launch,
        input_hbm.dtype if compute_dtype is None else compute_dtype,
        FORWARD_BACKWARD,
        cores=cores,
        weight_layout=weight_layout,
        weight_dtype=weight_hbm.dtype,
    )
    block_positions = min(launch.positions, logits_blocks(*launch, scratch_bytes).positions)
    sums = 0
    if block_positions > (position_block or chosen.position_block):
        sums = 2 * (class_block or chosen.class_block) * launch.features
    sums = one_launch_bytes(*launch, scratch_bytes, cores) + FLOAT32_BYTES * (launch.classes + cores * (sums + 1))
    return sums + _copied_bytes(input_hbm, compute_dtype)


_MATH = "float32; products in the operands' type or in compute_dtype"
_COPIES = "with a compute_dtype of s bytes, also s N D if X has another type, and nothing for W and the bias"
_UNROUNDED = (
    "the bias is added in float32, and db of a bias of another type than 16-bit products is summed from unrounded G"
)
_CORES = "on two cores, each core has half of the classes, which splits the sums over the classes differently"

LINEAR_CROSS_ENTROPY_FORWARD = Guarantee(
    math=_MATH,
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace="0",
    in_place=None,
    error=(
        "the errors of extended_cross_entropy_forward, plus twice the largest (ceil(D / 128) + 128) u sum |x w| in a "
        "row, u = 2^-24"
    ),
    notes=f"no logit is rounded to 16 bits; {_CORES}",
)
LINEAR_CROSS_ENTROPY_BACKWARD = Guarantee(
    math=_MATH,
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace=(
        "4 cores N D, plus 8 cores class_block D if N > position_block; with more than 65,536 positions, twice the "
        f"workspace of a part of n <= 16,384 positions, plus 4 n D + 4 V D + 8 V; {_COPIES}"
    ),
    in_place="grad_weight_sum_hbm",
    error=(
        "dX: sum |W| err(G) + (ceil(V / 128) + 135) u sum |G| |W|, u = 2^-24, err(G) the error of G, plus the rounding "
        "of the result; dW: likewise, with sums over the positions"
    ),
    workspace_bytes=backward_workspace_bytes,
    notes=f"the gradients G of the logits are rounded once, to the type of the products; {_UNROUNDED}; {_CORES}",
)
LINEAR_CROSS_ENTROPY_FORWARD_BACKWARD = Guarantee(
    math=_MATH,
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace=(
        "4 (cores N D + n V + V + cores) for blocks of n positions, plus 4 V D if there are several blocks, plus "
        f"8 cores class_block D if n > position_block; {_COPIES}"
    ),
    in_place=None,
    error="the errors of the forward and of the backward",
    workspace_bytes=one_launch_workspace_bytes,
    notes=f"the gradients are computed from the unrounded logits, which the kernel keeps; {_CORES}",
)
LINEAR_TOKEN_SCORES_FORWARD = replace(
    LINEAR_CROSS_ENTROPY_FORWARD,
    error="the errors of linear_cross_entropy_forward, whose loss is minus the log-probability",
)
LINEAR_TOKEN_SCORES_BACKWARD = replace(
    LINEAR_CROSS_ENTROPY_BACKWARD,
    workspace=(
        "4 cores N D, plus 8 cores class_block D if N > position_block; with more positions than fit in one part, "
        f"twice the workspace of a part of n positions, plus 4 n D + 4 V D + 8 V; {_COPIES}"
    ),
    error=(
        "the error of linear_cross_entropy_backward, with (K + 4) u sum |g_k| more in each G before it is rounded, "
        "u = 2^-24"
    ),
)


# The sizes of the launches whose times the registry lists.
_POSITIONS, _FEATURES, _CLASSES = 4096, 4096, 32128


def _forward_tensors(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    return {
        "input_hbm": spec((_POSITIONS, _FEATURES), dtype),
        "weight_hbm": spec((_CLASSES, _FEATURES), dtype),
        "targets_hbm": spec((_POSITIONS,), "int32"),
    }


def _backward_tensors(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    of_positions = spec((_POSITIONS,), "float32")
    return {**_forward_tensors(dtype), "lse_hbm": of_positions, "grad_loss_hbm": of_positions}


linear_cross_entropy_forward = launchable(
    kernels.linear_cross_entropy_forward, LINEAR_CROSS_ENTROPY_FORWARD, linear_forward_work
)
linear_cross_entropy_backward = launchable(
    kernels.linear_cross_entropy_backward, LINEAR_CROSS_ENTROPY_BACKWARD, linear_backward_work
)
linear_cross_entropy_forward_backward = launchable(
    kernels.linear_cross_entropy_forward_backward, LINEAR_CROSS_ENTROPY_FORWARD_BACKWARD, linear_forward_backward_work
)
linear_token_scores_forward = launchable(
    token_scores_kernels.linear_token_scores_forward, LINEAR_TOKEN_SCORES_FORWARD, linear_scores_forward_work
)
linear_token_scores_backward = launchable(
    token_scores_kernels.linear_token_scores_backward, LINEAR_TOKEN_SCORES_BACKWARD, linear_scores_backward_work
)

LINEAR_CROSS_ENTROPY: Final = Loss(
    name="linear_cross_entropy",
    module="LinearCrossEntropyLoss",
    forward=linear_cross_entropy_forward,
    backward=linear_cross_entropy_backward,
    formula="cross_entropy(h W^T + b, t)",
    derivative="(softmax - onehot) W",
    differentiated=("input", "weight", "bias"),
    options=("ignore_index", "label_smoothing", "logit_softcap"),
    tests=("tests/experimental/loss/linear_cross_entropy", "tests/torch/functions/linear_cross_entropy"),
    differences="the logits are never in memory; there are further options and results",
    launches=(
        ModelledLaunch("forward, none, 4,096 features", True, _forward_tensors, {"bfloat16": 1.1}, bounded_by=None),
        ModelledLaunch("backward, 4,096 features", False, _backward_tensors, {"bfloat16": 1.1}, bounded_by=None),
    ),
    family=Family.VOCABULARY,
)
