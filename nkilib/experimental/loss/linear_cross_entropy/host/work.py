# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The work of the kernels, whatever the tiling; from it the performance model knows how fast hardware could be.

The module is for host code, not for kernels. Every operand and every result crosses HBM once; logits do not.
The product that gives all logits takes N V D multiply-adds, and so does each of dX and dW.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from nkilib.base.statements import Work
from nkilib.core.hardware import FLOAT32_BYTES


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
    """Return the work of ``linear_token_scores_forward``.

    Log-probabilities and target logits are counted for K ids per position, where ``linear_forward_work`` counts one.
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


def _work(
    input_hbm: Any,
    compute_dtype: Any,
    elements: int,
    products: int,
    hbm_bytes: int,
    exponentials: int,
    maxima: int = 0,
) -> Work:
    """Return the work of a launch with ``products`` matrix products of N V D multiply-adds, for N V = ``elements``."""
    return Work(
        hbm_bytes=hbm_bytes,
        exponentials=exponentials,
        maxima=maxima,
        multiply_adds=products * elements * input_hbm.shape[1],
        dtype=_dtype(input_hbm.dtype if compute_dtype is None else compute_dtype),
    )


def _elements(input_hbm: Any, weight_hbm: Any) -> int:
    """Return the number of logits, N V."""
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
    """Return the bytes of the wanted gradients; a given sum of dW is read and written."""
    total = 0
    if input_wanted:
        total += prod(input_hbm.shape) * FLOAT32_BYTES if input_float32 else _bytes(input_hbm)
    if weight_wanted:
        total += _bytes(weight_hbm) if weight_sum_hbm is None else 2 * _bytes(weight_sum_hbm)
    if bias_hbm is not None and bias_wanted in (None, True):
        total += prod(bias_hbm.shape) * FLOAT32_BYTES
    return total


def _exponentials(elements: int, logit_softcap: Any) -> int:
    """Return the number of function evaluations: an exponential for each element, and a tangent under a cap."""
    return elements if logit_softcap is None else 2 * elements


def _bytes(*arrays: Any) -> int:
    """Return the bytes of arrays in HBM, 0 for None."""
    from nkilib.simulator.terms.dtypes import as_dtype

    return sum(prod(array.shape) * as_dtype(array.dtype).itemsize for array in arrays if array is not None)


def _dtype(dtype: Any) -> Any:
    from nkilib.simulator.terms.dtypes import as_dtype

    return as_dtype(dtype)
