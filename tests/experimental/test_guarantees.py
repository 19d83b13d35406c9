# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every public kernel states a guarantee, and small launches hold each of its claims."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.base.guarantee import Guarantee
from nkilib.experimental.host.public_kernels import guarantee_of as stated_of
from nkilib.experimental.host.public_kernels import public_kernels
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import spec
from tests.experimental.guarantee_checks import (
    CASES,
    check_bits,
    check_sums,
    check_workspace,
    check_writes,
    kernel_of,
    launched,
    seen_of,
)
from tests.neuron.test_kernels import _public_kernels

KERNELS: dict[str, Any] = public_kernels()
OF_KERNEL = {
    name: [case for case in CASES.values() if kernel_of(case) is inspect.unwrap(kernel.func)]
    for name, kernel in KERNELS.items()
}


def guarantee_of(name: str) -> Guarantee:
    stated = stated_of(KERNELS[name])
    assert stated is not None, f"{name} states no guarantee"
    return stated


def _samples() -> list[Any]:
    """All cases, of which the suite runs one of each kernel, in place where there is one, and one under a shift."""
    results = []
    for kernel, of_kernel in OF_KERNEL.items():
        ordered = sorted(of_kernel, key=lambda case: case.written is None)
        entries = [("under a shift" in case.name) for case in ordered]
        for number, case in enumerate(ordered):
            is_first = entries.index(entries[number]) == number
            results.append(pytest.param(kernel, case.name, id=case.name, marks=[] if is_first else [pytest.mark.sweep]))
    return results


@pytest.mark.parametrize("name", KERNELS)
def test_every_public_kernel_states_a_guarantee_that_its_parameters_fit(name: str) -> None:
    guarantee, parameters = guarantee_of(name), inspect.signature(inspect.unwrap(KERNELS[name].func)).parameters
    assert OF_KERNEL[name], "no launch could hold it"
    assert (guarantee.workspace == "0") is (guarantee.workspace_bytes is None)
    assert {case.written for case in OF_KERNEL[name]} - {None} == {guarantee.in_place} - {None}
    assert guarantee.in_place is None or guarantee.in_place in parameters
    assert guarantee.error and guarantee.math and guarantee.accumulator


def test_no_public_kernel_is_missing() -> None:
    result = {kernel.__name__ for kernel in _public_kernels().values()}
    assert result - set(KERNELS) == set(), "add the family to nkilib/experimental/host/public_kernels.py"


@pytest.mark.parametrize(("kernel", "name"), _samples())
def test_what_a_kernel_guarantees_holds(kernel: str, name: str) -> None:
    guarantee, case = guarantee_of(kernel), CASES[name]
    arguments = case.arguments()
    on_one, on_two = seen_of(name, 1), seen_of(name, 2)
    check_bits(guarantee, on_one, on_two, launched(case.kernel, 2, arguments, case.results))
    references = case.references(arguments)
    for cores, seen in ((1, on_one), (2, on_two)):
        check_workspace(guarantee, seen, cores, arguments)
        check_writes(guarantee, seen, arguments, case.written)
        check_sums(guarantee, seen)
        for result in references.keys() & seen.results.keys():
            assert references[result].worst_error(seen.results[result]) <= 1.0, f"{result}, {cores} cores"


@pytest.mark.parametrize("form", ["special rows, float32, under a shift", "small, float32"])
def test_a_forward_of_one_form_is_bitwise_identical_on_one_core_and_two(form: str) -> None:
    """The notes of its guarantee say so: only the choice of a form is not promised."""
    name = f"cross_entropy_forward: {form}"
    assert seen_of(name, 1).bits() == seen_of(name, 2).bits()


def test_a_forward_with_the_exact_maximum_keeps_nothing_in_hbm() -> None:
    stated = guarantee_of("cross_entropy_forward").workspace_bytes
    assert stated is not None
    logits_hbm = spec((300, 1000), "float32")
    assert stated(logits_hbm=logits_hbm, cores=2, exact_maximum=True) == 0
    assert stated(logits_hbm=logits_hbm, cores=2) == 4 * 128 * (3 + 1)


LINEAR = "linear_cross_entropy_forward_backward: float32"
IN_PLACE = "cross_entropy_backward: small, bfloat16, in place"


def test_wrong_guarantees_of_the_library_are_reported() -> None:
    linear, of_linear = seen_of(LINEAR, 2), guarantee_of("linear_cross_entropy_forward_backward")
    arguments = CASES[LINEAR].arguments()
    with pytest.raises(AssertionError, match="two cores and one are not bitwise identical"):
        check_bits(replace(of_linear, same_bits_on_cores=True), seen_of(LINEAR, 1), linear, linear)
    with pytest.raises(AssertionError, match="takes 305768 bytes, states 0"):
        check_workspace(replace(of_linear, workspace_bytes=None), linear, 2, arguments)
    with pytest.raises(AssertionError, match="adds up"):
        check_sums(replace(of_linear, accumulator="none"), linear)
    with pytest.raises(AssertionError, match="adds up"):
        check_sums(replace(of_linear, accumulator="bfloat16"), linear)
    written, of_written = seen_of(IN_PLACE, 2), guarantee_of("cross_entropy_backward")
    with pytest.raises(AssertionError, match="states None"):
        check_writes(replace(of_written, in_place=None), written, CASES[IN_PLACE].arguments(), "logits_hbm")
    with pytest.raises(AssertionError, match="changes"):
        check_writes(of_written, written, CASES[IN_PLACE].arguments(), None)


def test_a_kernel_that_breaks_a_guarantee_is_reported() -> None:
    runs = iter(range(1, 4))

    @nki.jit
    def careless(x: nl.NkiTensor) -> nl.NkiTensor:
        """Adds rows up in bfloat16, keeps a scratch, and returns another number on every run."""
        scratch = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.private_hbm, name="scratch")
        result = nl.ndarray((128, 1), dtype=nl.bfloat16, buffer=nl.shared_hbm, name="result")
        tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=scratch, src=tile)
        total = nl.ndarray((128, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1)
        nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=float(next(runs)))
        nisa.dma_copy(dst=result, src=total)
        return result

    arguments = {"x": np.ones((128, 8), np.float32)}
    first, second = launched(careless, 1, arguments), launched(careless, 1, arguments)
    promised = replace(guarantee_of("cross_entropy_backward"), accumulator="float32")
    with pytest.raises(AssertionError, match="another run is not bitwise identical"):
        check_bits(promised, first, first, second)
    with pytest.raises(AssertionError, match="takes 4096 bytes, states 0"):
        check_workspace(promised, first, 1, arguments)
    with pytest.raises(AssertionError, match="adds up"):
        check_sums(promised, first)
    check_writes(promised, first, arguments, None)
