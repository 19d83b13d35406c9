# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Several partitions a position: results within the bounds, bits that depend on the number of partitions alone, which
launches have it, and which the chooser gives it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import distillation_backward, distillation_forward
from nkilib.experimental.loss.distillation import launch as launches
from nkilib.experimental.loss.distillation.host import (
    distillation_bound,
    distillation_gradient_bound,
    distillation_gradient_reference,
    distillation_reference,
    profile_distillation_launch,
)
from nkilib.experimental.loss.distillation.tiling import choose_distillation_tiling
from tests.experimental.loss.distillation.inputs import BETAS, TYPES, pair, upstream

SPLIT = "partitions_per_position"
INF = np.inf


def _launch(student: Any, teacher: Any, parts: int, labels: Any = None, cores: int = 2, **options: Any) -> Any:
    options[SPLIT] = parts
    results = distillation_forward[cores](student, teacher, labels, **options)
    grad_loss = upstream(len(student))
    return results, distillation_backward[cores](student, teacher, *results[1:], grad_loss, labels, **options)


def _check(student: Any, teacher: Any, parts: int, labels: Any = None, temperature: Any = 1.0, **more: Any) -> Any:
    """Launch, and compare loss and gradient with float64; return the largest shares of the bounds."""
    name = "temperature" if np.ndim(temperature) == 0 else "temperature_hbm"
    results, gradient = _launch(student, teacher, parts, labels, **{**more, name: temperature})
    of_loss = {"beta": more.get("beta", 0.0), "temperature": temperature}
    exact = distillation_reference(student, teacher, labels, **of_loss)
    shares = np.abs(results[0] - exact) / distillation_bound(student, teacher, **of_loss, is_split=True)
    grad_loss = upstream(len(student))
    exact = distillation_gradient_reference(student, teacher, grad_loss, labels, **of_loss)
    bound = distillation_gradient_bound(student, teacher, grad_loss, exact, **of_loss, is_split=True)
    of_gradient = np.abs(np.asarray(gradient, np.float64) - exact) / bound
    assert np.all(shares <= 1.0) and np.all(of_gradient <= 1.0)
    return shares.max(), of_gradient.max()


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("types", [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")])
def test_results_are_within_the_bounds(beta: float, types: tuple[str, str]) -> None:
    """One core without positions; a tail of the last part; several batches, the last one a short one."""
    for (positions, classes), parts in (((1, 33), 16), ((3, 2077), 4), ((67, 130), 4)):
        student, teacher = pair(positions, (positions, classes), types)
        labels = np.where(np.arange(positions) % 5 == 3, -100, 1).astype(np.int32)
        _check(student, teacher, parts, labels, 2.0, beta=beta)
        _check(student, teacher, parts, None, np.linspace(0.5, 3.0, positions).astype(np.float32), beta=beta)


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("type_name", TYPES)
def test_hard_rows(beta: float, type_name: str) -> None:
    """Sure models, near and far from each other; a late maximum; masked classes; large logits."""
    student, teacher = pair(3, (6, 700), (type_name, type_name))
    student[0, 5] = teacher[0, 5] = teacher[1, 690] = 16.0  # probabilities of about 0.999
    student[2, 699], teacher[3, 650] = 80.0, 60.0
    student[4, 90:400] = teacher[4, 90:400] = -INF  # whole parts of both
    student[5], teacher[5] = student[5] * 64, teacher[5] * 64
    for parts in (2, 8):
        assert _check(student, teacher, parts, beta=beta)[0] <= 0.5
        _check(student, teacher, parts, beta=beta, chunk_size=40)


@pytest.mark.parametrize("wrong", [np.zeros_like, np.negative, lambda values: values[::-1]])
def test_wrong_results_are_beyond_the_bounds(wrong: Any) -> None:
    student, teacher = pair(10, (4, 300))
    results, gradient = _launch(student, teacher, 4)
    exact = distillation_reference(student, teacher)
    assert np.any(np.abs(wrong(results[0]) - exact) > distillation_bound(student, teacher, is_split=True))
    exact = distillation_gradient_reference(student, teacher, upstream(4))
    bound = distillation_gradient_bound(student, teacher, upstream(4), exact, is_split=True)
    assert np.any(np.abs(wrong(gradient) - exact) > bound)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("chunk_size", [None, 30])
def test_masked_classes(type_name: str, chunk_size: int | None) -> None:
    student, teacher = pair(5, (5, 700), (type_name, type_name))
    student[0, 3:400] = teacher[0, 3:400] = -INF  # in both
    teacher[1, 3:400] = -INF  # in the teacher alone
    student[2, 600] = -INF  # in the student alone
    student[3, 180:400] = -INF  # a whole part in the student alone
    teacher[4] = -INF  # nothing is left
    for beta, expected in ((0.0, (0, 0, 1, 1, 2)), (1.0, (0, 1, 0, 0, 2)), (0.5, (0, 0, 0, 0, 2))):
        (loss, *_), gradient = _launch(student, teacher, 4, beta=beta, chunk_size=chunk_size)
        exact = distillation_reference(student, teacher, beta=beta)
        for row, kind in enumerate(expected):
            if kind == 0:
                assert abs(loss[row] - exact[row]) <= 1e-5
                assert np.all(np.isfinite(np.asarray(gradient[row], np.float32)))
            else:
                assert np.isposinf(loss[row]) if kind == 1 else np.isnan(loss[row])


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_a_row_that_is_no_number_leaves_the_others_as_they_are(beta: float) -> None:
    student, teacher = pair(6, (5, 800))
    expected, _ = _launch(student, teacher, 8, beta=beta)
    student[1, 700], teacher[3, 2] = np.nan, INF
    result, _ = _launch(student, teacher, 8, beta=beta)
    kept = [0, 2, 4]
    assert np.all(np.isnan(result[0][[1, 3]]))
    assert all(np.array_equal(a[kept], b[kept]) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_temperatures_out_of_range_make_their_rows_nan(beta: float) -> None:
    student, teacher = pair(7, (6, 300))
    temperatures = np.array([1.0, 0.0, np.nan, -1.0, INF, 2.0], np.float32)
    labels = np.array([1, 1, -100, 1, 1, 1], np.int32)
    results, gradient = _launch(student, teacher, 4, labels, beta=beta, temperature_hbm=temperatures)
    assert np.array_equal(np.isnan(results[0]), [False, True, False, True, True, False])
    assert np.array_equal(np.isnan(gradient).all(axis=1), [False, True, False, True, True, False])
    assert results[0][2] == 0.0 and np.all(gradient[2] == 0.0)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_equal_logits_give_exactly_zero(beta: float) -> None:
    student, _ = pair(3, (4, 901))
    results, gradient = _launch(student, student.copy(), 8, beta=beta)
    assert np.all(results[0] == 0.0)
    assert np.all(np.abs(gradient) <= 1e-6)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("parts", [4, 16])
def test_bits_of_a_position_depend_on_nothing_else(beta: float, parts: int) -> None:
    student, teacher = pair(8, (40, 301), ("bfloat16", "float32"))
    every, all_gradients = _launch(student, teacher, parts, beta=beta)
    for cores, first, end in ((1, 0, 40), (2, 5, 40), (2, 17, 18)):
        own = student[first:end].copy(), teacher[first:end].copy()
        some = distillation_forward[cores](*own, beta=beta, partitions_per_position=parts)
        assert all(a[first:end].tobytes() == b.tobytes() for a, b in zip(every, some, strict=True))
        grad_loss = upstream(40)[first:end].copy()
        gradient = distillation_backward[cores](*own, *some[1:], grad_loss, beta=beta, partitions_per_position=parts)
        assert all_gradients[first:end].tobytes() == gradient.tobytes()


@pytest.mark.parametrize("beta", BETAS)
def test_gradients_have_the_bits_of_one_partition_a_position(beta: float) -> None:
    student, teacher = pair(9, (20, 301), ("bfloat16", "bfloat16"))
    results = distillation_forward[2](student, teacher, beta=beta)
    arguments = student, teacher, *results[1:], upstream(20)
    gradients = {
        distillation_backward[2](*arguments, beta=beta, partitions_per_position=parts).tobytes() for parts in (1, 4, 64)
    }
    given = student.copy()
    distillation_backward[2](given, *arguments[1:], beta=beta, partitions_per_position=4, inplace=True)
    assert gradients == {given.tobytes()}


def test_positions_in_parts_are_bitwise_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = pair(10, (70, 300), ("bfloat16", "float32"))
    whole = _launch(student, teacher, 8)
    monkeypatch.setattr(launches, "BATCHES_MAX", 1)  # up to 32 positions at a time
    in_parts = _launch(student, teacher, 8)
    assert all(np.array_equal(a, b) for a, b in zip(whole[0], in_parts[0], strict=True))
    assert np.array_equal(whole[1], in_parts[1])


def _has(positions: int, classes: int, direction: str = "forward", **options: Any) -> bool:
    """Whether a launch of these sizes has several partitions a position, as it asks for."""
    profiled = profile_distillation_launch(positions, classes, "bfloat16", direction, **options)
    return any("row_plan.py" in event.place for event in profiled.instructions)


def test_launches_that_keep_one_partition_a_position() -> None:
    assert _has(32, 300, partitions_per_position=4) and not _has(32, 300)
    assert not _has(32, 3, partitions_per_position=4)
    assert _has(32, 300, beta=0.5, partitions_per_position=4)
    assert _has(32, 300, "backward", beta=0.5, partitions_per_position=4)


@pytest.mark.parametrize("parts", [0, 3, 256, 2.0, True])
def test_refused_numbers_of_partitions(parts: Any) -> None:
    student, teacher = pair(4, (4, 300))
    message = f"partitions_per_position must be a power of two from 1 to 128, got {parts}; take that of"
    with pytest.raises(AssertionError, match=f"distillation_forward: {message}"):
        distillation_forward[2](student, teacher, partitions_per_position=parts)
    vectors = [np.ones(4, np.float32)] * 6
    with pytest.raises(AssertionError, match=f"distillation_backward: {message}"):
        distillation_backward[2](student, teacher, *vectors, partitions_per_position=parts)


def test_a_chunk_of_a_part_is_not_longer_than_the_part() -> None:
    student, teacher = pair(4, (4, 301))
    with pytest.raises(AssertionError, match="from 1 to 76 that makes at most 512 chunks of 76 entries, got 77"):
        distillation_forward[2](student, teacher, partitions_per_position=4, chunk_size=77)


def test_the_choice_of_the_number_of_partitions() -> None:
    def parts(positions: int | None, classes: int, is_backward: bool = False, is_mixed: bool = False) -> int:
        return choose_distillation_tiling(classes, 4, is_mixed, is_backward, positions).partitions_per_position

    assert [parts(positions, 32000) for positions in (1, 8, 32, 33, 128, 129)] == [128, 32, 8, 4, 2, 1]
    assert parts(None, 32000) == parts(32, 512) == 1
    assert parts(300, 4096) == 2 and parts(600, 4096) == 1
    assert parts(32, 32000, is_mixed=True) == parts(32, 32000, True, is_mixed=True) == 8
    assert parts(300, 4096, is_mixed=True) == 1
    assert parts(300, 32000, True) == 4 and parts(512, 32000, True) == 1


@pytest.mark.parametrize(
    ("direction", "beta", "most"), [("forward", 0.0, 28.0), ("forward", 0.5, 63.0), ("backward", 0.0, 17.5)]
)
def test_few_positions_keep_all_partitions_busy(direction: str, beta: float, most: float) -> None:
    tiling = choose_distillation_tiling(32000, 4, beta == 0.5, direction == "backward", 32)
    profiled = profile_distillation_launch(32, 32000, "bfloat16", direction, beta=beta, **tiling._asdict())
    assert profiled.time_us <= most
    if direction == "forward":
        assert profiled.hbm_read_bytes == 2 * 2 * 32 * 32000
