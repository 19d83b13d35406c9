# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients of distillation against float64, from the very logits that the kernels were given; and refusals
of the kernels, each with its whole message.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.loss import distillation_backward, distillation_forward
from nkilib.experimental.loss.distillation import launch as options
from nkilib.experimental.loss.distillation.registry_entry import (
    distillation_bound,
    distillation_gradient_bound,
    distillation_gradient_reference,
    distillation_reference,
)
from tests.experimental.loss.distillation.inputs import BETAS, pair, upstream
from tests.experimental.refusals import DISTILLATION_KERNELS, Kernel, Refusal, assert_refused, parametrized


def _launch(student: Any, teacher: Any, labels: Any = None, cores: int = 2, **options: Any) -> tuple[Any, Any]:
    results = distillation_forward[cores](student, teacher, labels, **options)
    grad_loss = upstream(len(student))
    gradient = distillation_backward[cores](student, teacher, *results[1:], grad_loss, labels, **options)
    return results, gradient


def _assert_right(student: Any, teacher: Any, beta: float = 0.0, temperature: float = 1.0, **tiling: Any) -> Any:
    results, gradient = _launch(student, teacher, beta=beta, temperature=temperature, **tiling)
    options = {"beta": beta, "temperature": temperature}
    exact = distillation_reference(student, teacher, **options)
    assert np.all(np.abs(results[0] - exact) <= distillation_bound(student, teacher, **options))
    grad_loss = upstream(len(student))
    exact = distillation_gradient_reference(student, teacher, grad_loss, **options)
    bound = distillation_gradient_bound(student, teacher, grad_loss, exact, **options)
    assert np.all(np.abs(np.asarray(gradient, np.float64) - exact) <= bound)
    return results, gradient


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(
    "types", [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "bfloat16")]
)
def test_the_reference_within_the_bound(beta: float, types: tuple[str, str]) -> None:
    student, teacher = pair(1, (131, 700), types)
    _assert_right(student, teacher, beta, 2.0, chunk_size=300)


@given(
    positions=st.integers(1, 6),
    classes=st.integers(1, 1300),
    beta=st.sampled_from(BETAS),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12, deadline=None)
def test_any_shape(positions: int, classes: int, beta: float, temperature: float, seed: int) -> None:
    _assert_right(*pair(seed, (positions, classes)), beta, temperature)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("positions", [1, 3])
def test_rows_whose_maximum_comes_late_are_recomputed(beta: float, positions: int) -> None:
    student, teacher = pair(2, (positions, 1200))
    student[0, 1100], teacher[-1, 900] = 90.0, 130.0
    _assert_right(student, teacher, beta)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_equal_logits_give_exactly_zero(beta: float) -> None:
    student, _ = pair(3, (4, 900))
    results, gradient = _launch(student, student.copy(), beta=beta)
    assert np.all(results[0] == 0.0)
    assert np.all(np.abs(gradient) <= 1e-6)


def test_logits_far_from_zero_lose_nothing() -> None:
    student, teacher = (logits.round(3) for logits in pair(4, (4, 600), ("bfloat16", "bfloat16")))
    plain, _ = _launch(student.astype(np.float32), teacher.astype(np.float32))
    far, _ = _launch(student.astype(np.float32) + 2.0**14, teacher.astype(np.float32) + 2.0**14)
    exact = distillation_reference(student.astype(np.float32) + 2.0**14, teacher.astype(np.float32) + 2.0**14)
    assert np.all(np.abs(far[0] - exact) <= 1e-5)
    assert np.all(np.abs(plain[0] - distillation_reference(student, teacher)) <= 1e-5)


@pytest.mark.parametrize("type_name", ["float32", "bfloat16", "float16"])
def test_masked_classes(type_name: str) -> None:
    student, teacher = pair(5, (4, 700), (type_name, type_name))
    student[0, 3:300] = teacher[0, 3:300] = -np.inf  # in both
    teacher[1, 3:300] = -np.inf  # in the teacher alone
    student[2, 600] = -np.inf  # in the student alone
    teacher[3] = -np.inf  # nothing is left
    for beta, expected in ((0.0, (0, 0, 1, 2)), (1.0, (0, 1, 0, 2)), (0.5, (0, 0, 0, 2))):
        (loss, *_), gradient = _launch(student, teacher, beta=beta)
        exact = distillation_reference(student, teacher, beta=beta)
        for row, kind in enumerate(expected):
            if kind == 0:
                assert abs(loss[row] - exact[row]) <= 1e-5
                assert np.all(np.isfinite(np.asarray(gradient[row], np.float32)))
            else:
                assert np.isposinf(loss[row]) if kind == 1 else np.isnan(loss[row])


def test_a_row_that_is_no_number_leaves_the_others_as_they_are() -> None:
    student, teacher = pair(6, (5, 800))
    expected, _ = _launch(student, teacher)
    student[1, 700], teacher[3, 2] = np.nan, np.inf
    result, _ = _launch(student, teacher)
    kept = [0, 2, 4]
    assert np.all(np.isnan(result[0][[1, 3]]))
    assert np.array_equal(result[0][kept], expected[0][kept])


def test_ignored_positions_have_no_loss_and_no_gradient() -> None:
    student, teacher = pair(7, (6, 600))
    labels = np.array([1, -100, 2, -100, 0, 5], np.int32)
    for beta in BETAS:
        (loss, *_), gradient = _launch(student, teacher, labels, beta=beta)
        free, of_all = _launch(student, teacher, beta=beta)
        counts = labels != -100
        assert np.all(loss[~counts] == 0.0)
        assert np.all(gradient[~counts] == 0.0)
        assert np.array_equal(loss[counts], free[0][counts])
        assert np.array_equal(gradient[counts], of_all[counts])


@pytest.mark.parametrize("beta", BETAS)
def test_bits_do_not_depend_on_cores_nor_on_other_rows(beta: float) -> None:
    student, teacher = pair(8, (5, 1100), ("bfloat16", "float32"))
    student[2, 1000] = 100.0
    two, one = (_launch(student, teacher, cores=cores, beta=beta) for cores in (2, 1))
    assert all(np.array_equal(a, b) for a, b in zip(two[0], one[0], strict=True))
    assert np.array_equal(two[1], one[1])
    for row in (0, 2):
        alone = distillation_forward[2](student[row : row + 1], teacher[row : row + 1], beta=beta)
        assert all(np.array_equal(a[row : row + 1], b) for a, b in zip(two[0], alone, strict=True))


@pytest.mark.parametrize("beta", BETAS)
def test_in_place_results_are_bitwise_identical(beta: float) -> None:
    student, teacher = pair(9, (3, 500), ("bfloat16", "bfloat16"))
    results, expected = _launch(student, teacher, beta=beta)
    given_student = student.copy()
    returned = distillation_backward[2](given_student, teacher, *results[1:], upstream(3), beta=beta, inplace=True)
    assert np.array_equal(given_student, expected)
    assert np.array_equal(returned, expected)


@pytest.mark.parametrize("type_name", ["float32", "bfloat16"])
def test_a_gradient_is_exact_where_the_student_gives_next_to_nothing(type_name: str) -> None:
    student, teacher = pair(12, (4, 300), (type_name, type_name))
    student[:, :3], teacher[:, :3] = -70.0, 20.0  # log(P / Q) of about 90
    _assert_right(student, teacher, 0.5)


@pytest.mark.parametrize("beta", BETAS)
def test_upstream_gradients_of_any_kind(beta: float) -> None:
    student, teacher = pair(13, (5, 200), ("bfloat16", "bfloat16"))
    results, _ = _launch(student, teacher, beta=beta)
    grad_loss = np.array([0.0, -3.0, 1e-30, np.nan, np.inf], np.float32)
    gradient = distillation_backward[2](student, teacher, *results[1:], grad_loss, beta=beta)
    finite = student[:3], teacher[:3], grad_loss[:3]
    exact = distillation_gradient_reference(*finite, beta=beta)
    bound = distillation_gradient_bound(*finite, exact, beta=beta)
    assert np.all(gradient[0] == 0.0)
    assert np.all(np.abs(np.asarray(gradient[:3], np.float64) - exact) <= bound)
    assert not np.any(np.isfinite(np.asarray(gradient[3:], np.float32)))


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_a_large_upstream_gradient_of_probabilities_below_the_normal_numbers(beta: float) -> None:
    """The gradient is within its bound where 200 columns have subnormal probabilities.

    In these columns zeros pass too, because a device may flush subnormal numbers to zero, and so does any other value
    within the bound. The wrong results at the end of the test are therefore told by the other 100 columns.
    """
    student, teacher = pair(14, (4, 300), ("bfloat16", "float32"))
    student[:, :200] -= 94.0  # probabilities of about 2^-136 to 2^-144
    results, _ = _launch(student, teacher, beta=beta)
    grad_loss = np.full(4, 2.0**16, np.float32)
    gradient = np.asarray(distillation_backward[2](student, teacher, *results[1:], grad_loss, beta=beta), np.float64)
    exact = distillation_gradient_reference(student, teacher, grad_loss, beta=beta)
    bound = distillation_gradient_bound(student, teacher, grad_loss, exact, beta=beta)
    assert 0.0 < np.abs(exact[:, :200]).max() < 1e-30
    assert np.all(np.abs(gradient - exact) <= bound)
    for wrong in (np.zeros_like(gradient), -gradient, gradient[::-1]):
        assert not np.all(np.abs(wrong - exact) <= bound)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_many_short_rows(beta: float) -> None:
    student, teacher = pair(14, (2700, 9), ("bfloat16", "bfloat16"))
    _assert_right(student, teacher, beta)
    _assert_right(student, teacher, beta, chunk_size=2)


@pytest.mark.parametrize("cheat", [np.zeros_like, np.negative, lambda values: values[::-1]])
def test_the_bound_notices_wrong_results(cheat: Any) -> None:
    student, teacher = pair(10, (4, 300))
    exact = distillation_reference(student, teacher)
    assert np.any(np.abs(cheat(exact) - exact) > distillation_bound(student, teacher))
    gradient = distillation_gradient_reference(student, teacher, upstream(4))
    bound = distillation_gradient_bound(student, teacher, upstream(4), gradient)
    assert np.any(np.abs(cheat(gradient) - gradient) > bound)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_vocabulary_of_262144(beta: float) -> None:
    student, teacher = pair(11, (2, 262144), ("bfloat16", "float32"))
    _assert_right(student, teacher, beta)


@pytest.mark.parametrize("beta", BETAS)
def test_positions_in_parts_are_bitwise_identical(beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = pair(10, (513, 600), ("bfloat16", "float32"))
    student[[1, 300, 512], 590] = 100.0  # Recomputed, the last one as the only position of its part.
    labels = np.where(np.arange(513) % 7 == 0, -100, 1).astype(np.int32)
    whole = _launch(student, teacher, labels, beta=beta)
    monkeypatch.setattr(options, "BATCHES_MAX", 1)
    for cores in (1, 2):
        in_parts = _launch(student, teacher, labels, cores=cores, beta=beta)
        assert all(np.array_equal(a, b) for a, b in zip(whole[0], in_parts[0], strict=True))
        assert np.array_equal(whole[1], in_parts[1])


_BACKWARD = ("distillation_backward",)
_REFUSALS = (
    Refusal(
        "three dimensions",
        "student_hbm must have shape (N, V) with N, V > 0, got (3, 100, 2); flatten all positions",
        shape=(3, 100, 2),
    ),
    Refusal(
        "other vocabulary",
        "teacher_hbm must have the shape of student_hbm, (3, 100), got (3, 99); both models must have one vocabulary",
        {"teacher_hbm": np.ones((3, 99), np.float32)},
    ),
    Refusal(
        "type of the teacher",
        "teacher_hbm must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"teacher_hbm": np.ones((3, 100), np.int32)},
    ),
    Refusal(
        "labels",
        "labels_hbm must be int32 of shape (3,), got int32 of shape (4,); cast and flatten it as the positions",
        {"labels_hbm": np.zeros(4, np.int32)},
    ),
    Refusal(
        "beta",
        "beta must be from 0, for KL(teacher || student), to 1, for KL(student || teacher), got 1.5; 0.5 is the "
        "Jensen-Shannon divergence",
        {"beta": 1.5},
    ),
    Refusal(
        "temperature",
        "temperature must be from 0.001 to 1000000.0, got 0.0; it divides the logits",
        {"temperature": 0.0},
    ),
    Refusal(
        "ignore_index",
        "ignore_index must be an int32, got 4294967296; use a label that is no class, such as -100",
        {"ignore_index": 2**32},
    ),
    Refusal(
        "chunk_size",
        "chunk_size must be an integer from 1 to 100 that makes at most 512 chunks of 100 entries, got 101; pass "
        "chunk_size=100",
        {"chunk_size": 101},
    ),
    Refusal(
        "type of a vector",
        "moment_hbm must be float32, got bfloat16; cast it to float32",
        {"moment_hbm": np.ones(3, ml_dtypes.bfloat16)},
        _BACKWARD,
    ),
    Refusal("inplace", "inplace must be True or False, got 2", {"inplace": 2}, _BACKWARD),
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
)


@parametrized(_REFUSALS, DISTILLATION_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
