# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cases of the kernels: none is missing, all are met by the simulator, and wrong results are told.

Their inputs are the same on every machine.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from nkilib.verify.kernels import extended_cross_entropy as extended
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference
from nkilib.verify.registry import cases
from nkilib.verify.step import Array, Observation, Status, argument_name
from tests.neuron.launches import matrix_of
from tests.neuron.test_kernels import _public_kernels

CASES = {case.name: case for case in cases()}
# Those of a real vocabulary take seconds.
LARGE = {name for name in CASES if "32128" in name}
SAMPLE = "cross_entropy_forward: small, float32"


def observed(name: str) -> Observation:
    return CASES[name].observe(is_device=False)


@pytest.mark.parametrize("kernel", _public_kernels().values(), ids=_public_kernels())
def test_every_public_kernel_has_cases_that_set_every_argument(kernel: Any) -> None:
    function = inspect.unwrap(kernel.func)
    own = [case for case in CASES.values() if inspect.unwrap(case.kernel.func) is function and case.name not in LARGE]
    launches = [case.arguments() for case in own]
    for parameter in inspect.signature(function).parameters.values():
        inputs = [launch.get(parameter.name, parameter.default) for launch in launches]
        assert any(isinstance(value, np.ndarray) or value != parameter.default for value in inputs), parameter.name
    types = {matrix_of(launch).dtype.name for launch in launches}
    assert types >= {"float32", "bfloat16"}


def test_both_numbers_of_cores_and_special_rows_are_there() -> None:
    assert {case.cores for case in CASES.values()} == {1, 2}
    assert len(CASES) == len(list(cases())), "names are unique"
    for entry in ("cross_entropy_forward", "cross_entropy_backward"):
        for name in (entry, f"extended_{entry}"):
            for dtype in ("float32", "bfloat16"):
                assert f"{name}: special rows, {dtype}" in CASES


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES, ids=str)
def test_the_simulator_reaches_the_case(name: str) -> None:
    """Small ones are met in `test_on_stand_in` too, by the same arithmetic."""
    verdict = CASES[name].judge(observed(name), is_device=False)
    assert verdict.status is Status.AS_EXPECTED, verdict.text


def _negated(array: Array) -> Array:
    return -array


def _zero(array: Array) -> Array:
    return np.zeros_like(array)


def _reversed(array: Array) -> Array:
    return array[::-1].copy()


def _one_off(array: Array) -> Array:
    """One element a thousandth, or one bfloat16 unit, beside what it was; integers by 1."""
    changed = array.copy()
    if array.dtype == np.int32:
        changed[0] += 1
        return changed
    place = np.unravel_index(np.argmax(np.where(np.isfinite(array.astype(np.float32)), np.abs(array), 0)), array.shape)
    changed[place] = array[place].astype(np.float64) * (1 + (2**-6 if array.dtype.itemsize == 2 else 2**-10))
    return changed


@pytest.mark.parametrize("change", [_negated, _zero, _reversed, _one_off])
@pytest.mark.parametrize(
    "name",
    [
        SAMPLE,
        "cross_entropy_backward: small, bfloat16, in place",
        "extended_cross_entropy_forward: probabilities, float32",
        "extended_cross_entropy_backward: every gradient, in place, float32",
    ],
)
def test_wrong_results_differ(name: str, change: Any) -> None:
    case, right = CASES[name], observed(name)
    for result in case.results:
        if result in ("argmax", "position_weight") and change in (_reversed, _negated):
            continue
        wrong = replace(right, arrays={**right.arrays, result: change(right.arrays[result])})
        verdict = case.judge(wrong, is_device=True)
        assert verdict.status is Status.DIFFERS, (result, verdict.text)
        assert verdict.text.startswith(f"{result}: ")


def test_another_class_is_named_where_the_bound_is_blind() -> None:
    """A row of nothing but -inf: NaN is expected, and there is no bound to check a number against."""
    name = "cross_entropy_forward: special rows, float32"
    right = observed(name)
    wrong = right.arrays["loss"].copy()
    assert np.isnan(wrong[6])
    wrong[6] = 0.0
    verdict = CASES[name].judge(replace(right, arrays={**right.arrays, "loss": wrong}), is_device=True)
    assert verdict.status is Status.DIFFERS
    assert "loss: 1 of another class, in rows 6; the first [6]: +0 came, NaN was expected" in verdict.text


def test_special_rows_hold_every_class() -> None:
    values = CASES["cross_entropy_forward: special rows, float32"].arguments()["logits_hbm"]
    assert np.isnan(values).any() and np.isposinf(values).any() and np.isneginf(values).any()
    assert ((values == 0) & np.signbit(values)).any() and ((np.abs(values) < 2.0**-126) & (values != 0)).any()


def test_an_error_is_no_result() -> None:
    verdict = CASES[SAMPLE].judge(Observation(error="RuntimeError: NCC_EVRF066"), is_device=True)
    assert (verdict.status, verdict.text) == (Status.FAILED, "RuntimeError: NCC_EVRF066")


def test_another_shape_or_type_differs() -> None:
    right = observed(SAMPLE)
    for wrong in (right.arrays["loss"][:, np.newaxis], right.arrays["loss"].astype(np.float64)):
        verdict = CASES[SAMPLE].judge(replace(right, arrays={**right.arrays, "loss": wrong}), is_device=True)
        assert verdict.status is Status.DIFFERS and "was expected" in verdict.text


def test_an_argument_that_is_only_read_must_stay() -> None:
    right = observed(SAMPLE)
    name = argument_name("targets_hbm")
    wrong = replace(right, arrays={**right.arrays, name: right.arrays[name] + np.int32(1)})
    verdict = CASES[SAMPLE].judge(wrong, is_device=True)
    assert verdict.status is Status.DIFFERS
    assert verdict.text.startswith("targets_hbm: changed by the launch, which only reads it")


def test_in_place_the_argument_may_change_or_not() -> None:
    """Whether it does is a probe; the result is what is returned."""
    case = CASES["cross_entropy_backward: small, bfloat16, in place"]
    right = case.observe(is_device=False)
    kept = {argument_name("logits_hbm"): case.arguments()["logits_hbm"]}
    for observation in (right, replace(right, arrays={**right.arrays, **kept})):
        assert case.judge(observation, is_device=True).status is Status.AS_EXPECTED


def linear_sizes(arguments: dict[str, Any]) -> tuple[int, int]:
    """Positions, and classes of all shards."""
    of_model = "student_" if "student_weight_hbm" in arguments else ""
    kept = arguments[f"{of_model}weight_hbm"].shape[1 if arguments.get(f"{of_model}weight_layout") == "dv" else 0]
    return len(arguments[f"{of_model}input_hbm"]), arguments.get("num_classes", kept)


@pytest.mark.parametrize("name", [name for name in CASES if name not in LARGE], ids=str)
def test_a_case_states_the_sizes_of_its_logits(name: str) -> None:
    arguments = CASES[name].arguments()
    is_linear = "weight_hbm" in arguments or "student_weight_hbm" in arguments
    if is_linear and "target_hbm" not in arguments:  # of an output layer, not of losses
        result = linear_sizes(arguments)
    else:
        *rows, columns = matrix_of(arguments).shape
        result = prod(rows), columns
    assert result == CASES[name].sizes


def test_a_case_says_what_it_is() -> None:
    case: Case = CASES[SAMPLE]
    assert case.what == "5 x 37, 1 core"
    assert case.judge(observed(SAMPLE), is_device=False).details["loss"]["most_ulp"] == 0


def test_results_beyond_float32_are_infinite() -> None:
    reference = Reference(np.array([1e39, -1e39, 1.0]), np.full(3, 1e-6))
    assert reference.worst_error(np.array([np.inf, -np.inf, 1.0], np.float32)) <= 1.0
    assert reference.worst_error(np.array([3e38, -np.inf, 1.0], np.float32)) == np.inf


def test_an_option_that_the_oracle_does_not_know_is_checked_by_its_classes() -> None:
    """Until it does: the launch is listed by itself."""
    case = CASES["extended_cross_entropy_forward: no option, float32"]
    unknown = {**case.arguments(), "logit_softcap": 1.0}
    assert extended.has_reference(unknown) and extended.forward_references(unknown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extended, "_RECIPE", extended._RECIPE - {"logit_softcap"})
        assert not extended.has_reference(unknown) and extended.forward_references(unknown) == {}


def test_numbers_are_normal_and_stay_the_same() -> None:
    result = inputs.numbers(1, 400, 50)
    assert result.dtype == np.float32
    assert abs(result.mean()) < 0.03 and abs(result.std() - 1) < 0.03
    np.testing.assert_allclose(result[0, :3], [1.40881, -0.7287203, -1.7992525], rtol=1e-5)
    assert (inputs.numbers(1, 50) == result.ravel()[:50]).all()
    assert (inputs.numbers(2, 50) != result.ravel()[:50]).any()


def test_classes_are_in_range_and_spread() -> None:
    result = inputs.targets(1000, 10)
    assert result.dtype == np.int32
    assert sorted(set(result.tolist())) == list(range(10))


def test_probabilities_add_up() -> None:
    np.testing.assert_allclose(inputs.probabilities(7, 30).sum(axis=1), 1, rtol=1e-6)


def test_confident_rows_are_there() -> None:
    """Every seventh row has p close to 1 at its target, where digits of a loss are lost most easily."""
    logits, targets = inputs.logits(15, 100, "float32").astype(float), inputs.targets(15, 100)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    at_target = p[np.arange(15), targets]
    assert (at_target[::7] > 0.999).all() and (at_target[1:7] < 0.999).all()
