# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 references of plain and extended kernels against PyTorch in float64, and both generations of the
kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy import reference
from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    ExtendedLoss,
    as_numpy_dtype,
    cross_entropy_backward_reference,
    cross_entropy_forward_reference,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.nki import nl
from nkilib.simulator import using

from .extended_checks import Array, Launch, Upstream, check_backward, check_forward
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, hard_batch, normal_batch, pair_name
from .test_extended_accuracy import OPTIONS, options_of, probabilities, upstream_of, with_ignored


def _torch_results(logits: Any, targets: Any, dtype: Any, reduction: str) -> tuple[Any, Any, Any]:
    """Loss, log-sum-exp and gradient of PyTorch in float64, from logits that PyTorch rounds to ``dtype``."""
    import torch
    import torch.nn.functional as F

    x = torch.from_numpy(logits.astype(np.float32)).to(getattr(torch, np.dtype(dtype).name)).double().requires_grad_()
    y = torch.from_numpy(targets).long()
    loss = F.cross_entropy(x, y, reduction="none")
    lse = torch.logsumexp(x, dim=1)
    F.cross_entropy(x, y, reduction=reduction).backward()
    return loss.detach().numpy(), lse.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("vocabulary", [1, 2, 507, 32128])
def test_equals_torch_float64(vocabulary: int, logits_dtype: Any, dtype: Any, reduction: str) -> None:
    logits, targets = hard_batch(vocabulary)
    logits = logits.astype(logits_dtype)
    expected_loss, expected_lse, expected_gradient = _torch_results(logits, targets, dtype, reduction)

    loss, lse = cross_entropy_forward_reference(logits, targets, dtype)
    gradient = cross_entropy_backward_reference(logits, targets, lse, reduction, dtype)

    assert loss.dtype == lse.dtype == gradient.dtype == np.float64
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12, atol=1e-13)
    # At 3e38 a float64 LSE has no digits left for log V; autograd starts from x - m, the oracle from x - lse.
    representable = np.abs(lse) < 1e30
    allowed = 1e-9 * np.abs(expected_gradient) + 1e-300
    # In whatever order V positive terms are added, their sum is off by at most (V - 1) 2^-53 of it, and so is p, from
    # which 1 is subtracted at the target; lse and x - lse are rounded too, and exp is good to a few units.
    scale = 1.0 / len(targets) if reduction == "mean" else 1.0
    of_p = (vocabulary + 2.0 * np.abs(lse) + 16.0) * 2.0**-53
    allowed[np.arange(len(targets)), targets] += scale * of_p
    assert (np.abs(gradient - expected_gradient) <= allowed)[representable].all()


NON_FINITE_ROWS = {
    "all -inf": ([-np.inf] * 4, 1),
    "NaN": ([0.0, np.nan, 1.0, 2.0], 0),
    "+inf": ([0.0, np.inf, 1.0, -np.inf], 0),
    "+inf at the target": ([0.0, np.inf, 1.0, 2.0], 1),
    "two +inf": ([np.inf, np.inf, 1.0, 2.0], 2),
    "-inf at the target": ([0.0, -np.inf, 1.0, 2.0], 1),
    "-inf elsewhere": ([0.0, -np.inf, 1.0, 2.0], 0),
}


@pytest.mark.parametrize("name", NON_FINITE_ROWS)
def test_classes_of_non_finite_rows_equal_torch(name: str) -> None:
    row, target = NON_FINITE_ROWS[name]
    logits, targets = np.array([row, [0.0, 1.0, 2.0, 3.0]], np.float32), np.array([target, 3], np.int32)
    expected_loss, expected_lse, expected_gradient = _torch_results(logits, targets, FP32, "mean")

    loss, lse = cross_entropy_forward_reference(logits, targets, FP32)
    gradient = cross_entropy_backward_reference(logits, targets, lse, "mean", FP32)

    np.testing.assert_allclose(loss, expected_loss, rtol=1e-14)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-14)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-14, atol=1e-16)


def test_row_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = hard_batch(101)
    whole_loss, whole_lse = cross_entropy_forward_reference(logits, targets, BF16)
    whole_gradient = cross_entropy_backward_reference(logits, targets, whole_lse, "mean", BF16)
    for elements in (1, 101, 350):
        monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", elements)
        loss, lse = cross_entropy_forward_reference(logits, targets, BF16)
        np.testing.assert_array_equal(loss, whole_loss)
        np.testing.assert_array_equal(lse, whole_lse)
        np.testing.assert_array_equal(
            cross_entropy_backward_reference(logits, targets, lse, "mean", BF16), whole_gradient
        )


@pytest.mark.parametrize(("vocabulary", "rows"), [(101, 1), (100, 1), (51, 1), (50, 2), (33, 3), (7, 5)])
def test_row_blocks_have_no_more_elements_than_are_allowed_or_one_row(
    vocabulary: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 100)
    results = [len(range(5)[rows]) for rows in reference.row_blocks(np.zeros((5, vocabulary)))]
    assert results[0] == rows and sum(results) == 5


def test_inputs_are_left_alone() -> None:
    logits, targets = normal_batch(5, 11)
    before = logits.tobytes()
    _, lse = cross_entropy_forward_reference(logits, targets, FP32)
    cross_entropy_backward_reference(logits, targets, lse, "sum", FP32)
    assert logits.tobytes() == before


def test_the_received_lse_is_used() -> None:
    logits, targets = normal_batch(3, 7)
    _, lse = cross_entropy_forward_reference(logits, targets, FP32)
    exact = cross_entropy_backward_reference(logits, targets, lse, "sum", FP32)
    shifted = cross_entropy_backward_reference(logits, targets, lse + np.log(2.0), "sum", FP32)
    onehot = np.eye(7)[targets]
    np.testing.assert_allclose(shifted + onehot, (exact + onehot) / 2, rtol=1e-12)


@pytest.mark.parametrize("dtype", [nl.bfloat16, "bfloat16", BF16, BF16.type])
def test_dtype_may_be_an_nki_type_a_numpy_type_or_a_name(dtype: Any) -> None:
    assert as_numpy_dtype(dtype) == BF16


@pytest.mark.parametrize("dtype", [np.float64, nl.int32, "float64"])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype must be float32, bfloat16 or float16"):
        as_numpy_dtype(dtype)


@pytest.mark.parametrize("target", [-100, -1, 4, 2**31 - 1, -(2**31)])
def test_a_target_outside_the_vocabulary_is_refused(target: int) -> None:
    logits, targets = np.zeros((3, 4), np.float32), np.array([0, 3, target], np.int32)
    with pytest.raises(IndexError, match=rf"target of row 2 must lie in \[0, 4\), got {target}$"):
        cross_entropy_forward_reference(logits, targets, FP32)
    with pytest.raises(IndexError, match=rf"target of row 2 must lie in \[0, 4\), got {target}$"):
        cross_entropy_backward_reference(logits, targets, np.zeros(3), "mean", FP32)


def test_shapes_that_do_not_fit_are_refused() -> None:
    logits, targets = normal_batch(3, 4)
    with pytest.raises(ValueError, match=r"targets must have shape \(3,\).*got \(2,\)"):
        cross_entropy_forward_reference(logits, targets[:2], FP32)
    with pytest.raises(ValueError, match=r"lse_state must have shape \(3,\).*got \(3, 1\)"):
        cross_entropy_backward_reference(logits, targets, np.zeros((3, 1)), "mean", FP32)
    with pytest.raises(ValueError, match=r"logits must be \[N, V\] with N, V > 0, got shape \(3, 0\)"):
        cross_entropy_forward_reference(logits[:, :0], targets, FP32)


def test_another_reduction_is_refused() -> None:
    logits, targets = normal_batch(3, 4)
    with pytest.raises(ValueError, match='reduction must be "mean" or "sum", got \'none\''):
        cross_entropy_backward_reference(logits, targets, np.zeros(3), "none", FP32)


POSITIONS, VOCABULARY = 23, 50


def _torch_loss(z: Any, targets: Array, options: ExtendedLoss) -> Any:
    import torch
    import torch.nn.functional as F

    inputs = torch.from_numpy(targets)
    weight = None if options.class_weight is None else torch.from_numpy(options.class_weight).double()
    return F.cross_entropy(
        z, inputs.long() if inputs.ndim == 1 else inputs.double(), weight, label_smoothing=options.label_smoothing,
        reduction="none",
    )  # fmt: skip


@pytest.mark.parametrize("is_probable", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_gradients_are_those_of_autograd(name: str, is_probable: bool) -> None:
    import torch

    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    targets = probabilities(POSITIONS, VOCABULARY) if is_probable else with_ignored(targets)
    options, upstream = options_of(name, VOCABULARY), upstream_of(POSITIONS, "lse, logprob, entropy")
    x = torch.from_numpy(logits).double().requires_grad_()
    cap = options.logit_softcap
    z = (x if cap is None else cap * torch.tanh(x / cap)) / options.temperature
    lse = torch.logsumexp(z, dim=1)
    valid = torch.from_numpy(options.is_valid(targets))
    loss = _torch_loss(z, targets, options) + torch.where(valid, options.lse_square_scale * lse.square(), 0.0)
    total = (loss * torch.from_numpy(upstream.loss)).sum() + (lse * torch.from_numpy(upstream.lse)).sum()
    if not is_probable:
        index = torch.from_numpy(np.where(targets == -100, 0, targets)).long()
        logprob = torch.where(valid, z[torch.arange(POSITIONS), index] - lse, 0.0)
        total = total + (logprob * torch.from_numpy(upstream.logprob)).sum()
    entropy = lse - (torch.softmax(z, dim=1) * z).sum(dim=1)
    total = total + (entropy * torch.from_numpy(upstream.entropy)).sum()
    total.backward()

    result = extended_forward_reference(logits, targets, FP32, options)
    np.testing.assert_allclose(result.loss, loss.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result.lse, lse.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(result.entropy, entropy.detach().numpy(), rtol=1e-12)
    of_logprob = None if is_probable else upstream.logprob
    inputs = BackwardInputs(result.lse, upstream.loss, upstream.lse, of_logprob, result.entropy, upstream.entropy)
    gradient = extended_backward_reference(logits, targets, FP32, options, inputs)
    assert x.grad is not None
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_the_mean_of_torch_divides_by_the_position_weights() -> None:
    import torch
    import torch.nn.functional as F

    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    targets = with_ignored(targets)
    options = options_of("weights, smoothing", VOCABULARY)
    results = check_forward(logits, targets, options, Launch(FP32))
    assert options.class_weight is not None
    expected = F.cross_entropy(
        torch.from_numpy(logits),
        torch.from_numpy(targets).long(),
        torch.from_numpy(options.class_weight),
        label_smoothing=options.label_smoothing,
    )
    assert results["loss"].sum() / results["position_weight"].sum() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("is_probable", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_trn3_too(dtype: Any, is_probable: bool) -> None:
    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    targets = probabilities(POSITIONS, VOCABULARY) if is_probable else with_ignored(targets)
    options, launch = options_of("everything", VOCABULARY), Launch(dtype, 2, 8, 20)
    with using(target="trn3"):
        lse = check_forward(logits, targets, options, launch, with_argmax=True, with_entropy=True)["lse"]
        upstream = Upstream(np.ones(POSITIONS, np.float32))
        check_backward(logits, targets, lse, upstream, options, launch, inplace=True)


def test_bfloat16_may_be_stored_as_float32() -> None:
    """NKI_PRECISE_FP=0: nothing in the kernels reads the bits of a tile."""
    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    logits = logits.astype(BF16).astype(np.float32)
    options, launch = options_of("everything", VOCABULARY), Launch(FP32, 2, 8, 20)
    with using(precise_fp=False):
        lse = check_forward(logits, with_ignored(targets), options, launch, with_argmax=True)["lse"]
        upstream = Upstream(np.ones(POSITIONS, np.float32))
        check_backward(logits, with_ignored(targets), lse, upstream, options, launch)
