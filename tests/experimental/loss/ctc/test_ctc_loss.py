# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""CTC: the kernels against float64, over layouts of sequences, blocks and chunks, and hard values; their refusals, each
with its whole message; the reference against PyTorch in float64, and bounds at points that can be worked out by hand.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._program_size import program_instructions
from nkilib.experimental.loss import ctc_loss_backward, ctc_loss_forward
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.ctc.host import (
    CtcLosses,
    ctc_loss_bound,
    ctc_loss_gradient_bound,
    ctc_loss_gradient_reference,
    ctc_loss_reference,
    reduced,
    reduction_factors,
)
from nkilib.nki import nl
from nkilib.simulator import profile, spec
from tests.experimental.refusals import CTC_KERNELS, Kernel, Refusal, assert_refused, parametrized

INF = np.inf


class Batch(NamedTuple):
    """The inputs of a launch, in the order of the kernels."""

    log_probs: Any
    targets: Any
    input_lengths: Any
    target_lengths: Any

    @property
    def reference(self) -> CtcLosses:
        targets = np.zeros((len(self.input_lengths), 1), np.int32) if self.targets is None else self.targets
        return ctc_loss_reference(self.log_probs, targets, self.input_lengths, self.target_lengths)


def batch_of(steps: int, sequences: int, classes: int, labels: int, seed: int = 0, spread: float = 3.0) -> Batch:
    """Random log-probabilities, labels (blank is 0) and lengths, of which the first are the largest."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((steps, sequences, classes))
    log_probs = (
        logits
        - np.log(np.exp(logits - logits.max(2, keepdims=True)).sum(2, keepdims=True))
        - logits.max(2, keepdims=True)
    )
    targets = rng.integers(1, classes, (sequences, labels)).astype(np.int32) if labels else None
    input_lengths = rng.integers(steps // 2, steps + 1, sequences).astype(np.int32)
    target_lengths = np.minimum(rng.integers(0, labels + 1, sequences), input_lengths).astype(np.int32)
    input_lengths[0], target_lengths[0] = steps, min(labels, steps)
    return Batch(log_probs.astype(np.float32), targets, input_lengths, target_lengths)


def launched(batch: Batch, upstream: Any, cores: int = 2, **options: Any) -> list[Any]:
    """Loss, -log-likelihood, alpha and gradient."""
    loss, nll, alpha = ctc_loss_forward[cores](*batch, **options)
    return [loss, nll, alpha, ctc_loss_backward[cores](*batch, nll, alpha, upstream, **options)]


def check(batch: Batch, reduction: str = "none", zero_infinity: bool = False) -> None:
    """Losses and gradients are within their bounds, and infinite and NaN where the reference is."""
    sequences = batch.log_probs.shape[1]
    upstream = np.linspace(-1.5, 2.0, sequences if reduction == "none" else 1).astype(np.float32)
    loss, _, _, gradient = launched(batch, upstream, reduction=reduction, zero_infinity=zero_infinity)
    result, lengths = batch.reference, (batch.input_lengths, batch.target_lengths)
    exact = reduced(result.losses, batch.target_lengths, reduction, zero_infinity)
    bound = ctc_loss_bound(result, *lengths, reduction, batch.log_probs.dtype)
    assert error_over_bound(loss, exact, bound).max() <= 1.0
    factors = reduction_factors(batch.target_lengths, reduction) * upstream.astype(np.float64)
    reference = ctc_loss_gradient_reference(batch.log_probs, result, batch.input_lengths, factors, zero_infinity)
    allowed = ctc_loss_gradient_bound(batch.log_probs, result, batch.input_lengths, factors, reference)
    assert gradient.dtype == batch.log_probs.dtype
    assert error_over_bound(gradient, reference, allowed).max() <= 1.0
    if np.isfinite(reference).all() and np.abs(reference).max() > 0.01:  # a wrong result is none
        reversed_in_time = [gradient[::-1]] if len(gradient) > 1 else []
        for wrong in (np.zeros_like(gradient), -gradient, *reversed_in_time):
            assert error_over_bound(wrong, reference, allowed).max() > 1.0


LAYOUTS = {
    "one sequence": (9, 1, 5, 3),
    "no labels": (7, 3, 5, 0),
    "several chunks, the last one short": (75, 4, 6, 9),
    "two blocks of states": (45, 3, 7, 70),
    "four blocks of states": (140, 3, 9, 130),
    "a loop of the device": (290, 2, 5, 40),
    "two groups on a core": (5, 260, 4, 2),
    "several pieces of the gradient": (6, 2, 5000, 3),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    check(batch_of(*LAYOUTS[name]))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_reductions(reduction: str) -> None:
    check(batch_of(20, 5, 6, 4), reduction)


@settings(max_examples=12)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(2, 5), st.integers(0, 6), st.integers(0, 99), st.booleans())
def test_any_shape(steps: int, sequences: int, classes: int, labels: int, seed: int, zero_infinity: bool) -> None:
    check(batch_of(steps, sequences, classes, labels, seed), zero_infinity=zero_infinity)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_repeated_labels_and_targets_without_an_alignment(zero_infinity: bool) -> None:
    batch = batch_of(6, 5, 4, 4)
    targets = np.array([[1, 1, 2, 2], [1, 2, 3, 1], [1, 1, 1, 1], [2, 2, 2, 9], [9, -1, 7, 9]], np.int32)
    batch = batch._replace(
        targets=targets,
        input_lengths=np.array([6, 6, 6, 3, 0], np.int32),  # the third needs 7 times
        target_lengths=np.array([4, 4, 4, 3, 0], np.int32),
    )
    check(batch, zero_infinity=zero_infinity)
    loss, *_ = ctc_loss_forward(*batch, reduction="none", zero_infinity=zero_infinity)
    infinite = 0.0 if zero_infinity else INF
    assert np.isfinite(loss[:2]).all() and loss[2:].tolist() == [infinite, infinite, 0.0]


def test_impossible_classes_and_times_behind_the_end() -> None:
    """-inf and what is padded spread nowhere: PyTorch's gradient at -inf is NaN, the right one is 0."""
    batch = batch_of(12, 3, 5, 3)
    log_probs = batch.log_probs.copy()
    log_probs[4, :, 3:] = -INF
    lengths = np.array([12, 8, 5], np.int32)
    clean = batch._replace(log_probs=log_probs, input_lengths=lengths)
    check(clean, zero_infinity=True)
    padded = log_probs.copy()
    for sequence, length in enumerate(lengths):
        padded[length:, sequence] = np.nan
    ones = np.ones(3, np.float32)
    expected = launched(clean, ones, reduction="none", zero_infinity=True)
    result = launched(clean._replace(log_probs=padded), ones, reduction="none", zero_infinity=True)
    for which in (0, 1, 3):
        np.testing.assert_array_equal(result[which], expected[which])


def test_a_label_that_is_no_class_has_no_alignment() -> None:
    batch = batch_of(8, 2, 4, 2)._replace(target_lengths=np.array([2, 1], np.int32))
    batch.targets[0] = [1, 4]
    loss, *_ = ctc_loss_forward(*batch, reduction="none")
    assert np.isinf(loss[0]) and np.isfinite(loss[1])


def test_sharp_predictions_keep_small_losses() -> None:
    """Probabilities of 0.999 and of 1e-30 at one time."""
    check(batch_of(40, 3, 6, 5, spread=30.0))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits(dtype: Any) -> None:
    batch = batch_of(30, 4, 6, 5)
    check(batch._replace(log_probs=batch.log_probs.astype(dtype)))


def test_alphas_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    batch = batch_of(20, 3, 6, 4)
    tensors = [torch.from_numpy(array) for array in batch]
    lengths = [tensor.tolist() for tensor in tensors[2:]]
    _, expected = torch._ctc_loss(tensors[0].double(), tensors[1], *lengths)
    _, _, alpha = ctc_loss_forward(*batch)
    for n, (steps, labels) in enumerate(zip(*lengths, strict=True)):
        exact = expected[n, :steps, : 2 * labels + 1].numpy()
        result = alpha[:steps, n, : 2 * labels + 1]
        np.testing.assert_array_equal(result < -1e29, exact == -INF)
        np.testing.assert_allclose(result[exact > -INF], exact[exact > -INF], rtol=1e-5, atol=1e-5)


def test_results_are_bitwise_identical_on_one_core_and_two_and_on_every_run() -> None:
    batch, one = batch_of(50, 67, 6, 5), np.array([1.5], np.float32)
    first, *others = (launched(batch, one, cores) for cores in (1, 2, 2))
    for other in others:
        for mine, yours in zip(first, other, strict=True):
            assert mine.tobytes() == yours.tobytes()


def _specs(steps: int, sequences: int, classes: int, labels: int) -> list[Any]:
    lengths = [spec((sequences,), nl.int32)] * 2
    return [spec((steps, sequences, classes), nl.float32), spec((sequences, labels), nl.int32), *lengths]


def test_a_longer_input_has_no_longer_program() -> None:
    def instructions(steps: int) -> int:
        return program_instructions(partial(profile, ctc_loss_forward[2], *_specs(steps, 2, 5, 10)))

    assert instructions(32 * 7 + 5) == instructions(32 * 11 + 5) < 4000


@pytest.mark.sweep
def test_modelled_time_of_a_step() -> None:
    """A step takes at most 3.2 us forward and 6.5 us backward for 64 sequences of 200 labels on two cores of trn2."""
    steps, sequences, classes, labels = 1500, 64, 128, 200
    inputs = _specs(steps, sequences, classes, labels)
    assert profile(ctc_loss_forward[2], *inputs).time_us / steps <= 3.2
    saved = [spec((sequences,), nl.float32), spec((steps, sequences, 2 * labels + 1), nl.float32)]
    assert profile(ctc_loss_backward[2], *inputs, *saved, spec((1,), nl.float32)).time_us / steps <= 6.5


@pytest.mark.sweep
@pytest.mark.parametrize("labels", [60, 200, 500])
def test_long_inputs(labels: int) -> None:
    check(batch_of(1203, 3, 30, labels))


FORWARD, BACKWARD = ("ctc_loss_forward",), ("ctc_loss_backward",)

REFUSALS = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
    Refusal(
        "log_probs 2-D",
        "log_probs_hbm must have shape (T, N, C) with at least one element, got (3, 100); launch nothing for an empty "
        "batch, and unsqueeze(1) a single sequence",
        {"log_probs_hbm": np.ones((3, 100), np.float32)},
    ),
    Refusal(
        "no time",
        "log_probs_hbm must have shape (T, N, C) with at least one element, got (0, 3, 100); launch nothing for an "
        "empty batch, and unsqueeze(1) a single sequence",
        {"log_probs_hbm": np.ones((0, 3, 100), np.float32)},
    ),
    Refusal(
        "log_probs int32",
        "log_probs_hbm.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"log_probs_hbm": np.ones((1, 3, 100), np.int32)},
    ),
    Refusal(
        "targets of another batch",
        "targets_hbm must have shape (3, S), S > 0, or be None if no target has a label, got (2, 1); pad the targets",
        {"targets_hbm": np.ones((2, 1), np.int32)},
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be nl.int32, got uint32; cast it",
        {"targets_hbm": np.ones((3, 1), np.uint32)},
    ),
    Refusal(
        "lengths too short",
        "input_lengths_hbm must have shape (3,), one for each sequence, got (2,)",
        {"input_lengths_hbm": np.ones(2, np.int32)},
    ),
    Refusal(
        "lengths float32",
        "target_lengths_hbm must be nl.int32, got float32; cast it",
        {"target_lengths_hbm": np.ones(3, np.float32)},
    ),
    Refusal("blank", "blank must be a class from 0 to 99, got 100", {"blank": 100}),
    Refusal("reduction", "reduction must be one of mean, sum, none, got batchmean", {"reduction": "batchmean"}),
    Refusal("zero_infinity", "zero_infinity must be True or False, got 1", {"zero_infinity": 1}),
    Refusal(
        "dtype",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"dtype": nl.int32},
        FORWARD,
    ),
    Refusal(
        "too many labels",
        "the states of 4437 labels take 213000 bytes of an SBUF partition, which has 212984; pass shorter targets",
        {"targets_hbm": np.ones((3, 4437), np.int32)},
        FORWARD,
    ),
    Refusal(
        "alpha",
        "alpha_hbm must be float32 of shape (1, 3, 3), as the forward returned it, got float32 of shape (1, 3, 1)",
        {"alpha_hbm": np.ones((1, 3, 1), np.float32)},
        BACKWARD,
    ),
    Refusal(
        "nll",
        "nll_hbm must be float32 of shape (3,), as the forward returned it, got float32 of shape (2,)",
        {"nll_hbm": np.ones(2, np.float32)},
        BACKWARD,
    ),
    Refusal(
        "upstream",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float32 of shape (3,); sum it up and "
        "cast it",
        {"grad_loss_hbm": np.ones(3, np.float32)},
        BACKWARD,
    ),
]


@parametrized(REFUSALS, CTC_KERNELS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_and_gradients(reduction: str) -> None:
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(3)
    log_probs = torch.randn(15, 4, 5, generator=generator, dtype=torch.float64).log_softmax(2).requires_grad_()
    targets = torch.tensor([[1, 1, 2, 3], [4, 3, 4, 3], [2, 2, 2, 2], [1, 2, 3, 4]])
    lengths = torch.tensor([15, 12, 5, 9]), torch.tensor([4, 3, 4, 0])  # the third has too few steps
    expected = F.ctc_loss(log_probs, targets, *lengths, reduction=reduction, zero_infinity=True)
    upstream = torch.linspace(-1.0, 2.0, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    expected.backward(upstream)
    inputs, of_targets = log_probs.detach().numpy(), lengths[1].numpy()
    result = ctc_loss_reference(inputs, targets.numpy(), lengths[0].numpy(), of_targets)
    assert np.isinf(result.losses).tolist() == [False, False, True, False]
    losses = reduced(result.losses, of_targets, reduction, zero_infinity=True)
    np.testing.assert_allclose(losses, expected.detach().numpy().reshape(-1), rtol=1e-12)
    factors = reduction_factors(of_targets, reduction) * upstream.numpy().reshape(-1)
    gradient = ctc_loss_gradient_reference(inputs, result, lengths[0].numpy(), factors, zero_infinity=True)
    np.testing.assert_allclose(gradient, log_probs.grad, atol=1e-12)


U = 2.0**-23


def test_every_step_and_the_end_cost_two_units_of_the_logarithm() -> None:
    """A step for each time, one sum more at the end; logarithms are as large as the loss and 20."""
    result = CtcLosses(np.array([5.0, np.inf, 0.0]), np.zeros((7, 3, 2)))
    bound = ctc_loss_bound(result, np.array([7, 7, 1]), np.array([2, 2, 1]), "none", np.float32)
    rounded = 0.5 * U * 5.0 + 2.0**-126
    expected = [2.0 * U * 8 * 25.0 + rounded, 2.0**-126, 2.0 * U * 2 * 20.0 + 2.0**-126]
    np.testing.assert_allclose(bound, expected, rtol=1e-12)


def test_a_sum_adds_the_errors_of_its_losses_and_of_its_additions() -> None:
    result = CtcLosses(np.array([5.0, 3.0]), np.zeros((7, 2, 2)))
    bound = ctc_loss_bound(result, np.array([7, 4]), np.array([2, 1]), "sum")
    additions = 32 * (1 + 2) + 4  # two losses, then 128 partitions, 32 numbers at a time
    expected = 2.0 * U * (8 * 25.0 + 5 * 23.0) + additions * 0.5 * U * 8.0
    np.testing.assert_allclose(bound, [expected], rtol=1e-9)
