# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every public kernel states a guarantee, and small launches hold each of its claims.

Launches are observed, and each claim is checked against what was seen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from nkilib.base.guarantee import Guarantee
from nkilib.experimental.public_kernels import guarantee_of as stated_of
from nkilib.experimental.public_kernels import public_kernels
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import spec
from nkilib.simulator.language import creation
from nkilib.simulator.machine.observer import Issued, Observer, Observers, watching
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.terms.enums import HBM
from nkilib.verify.kernels.case import Case
from nkilib.verify.registry import cases
from tests.neuron.test_kernels import _public_kernels

# Those of a real vocabulary take seconds.
CASES = {case.name: case for case in cases() if "32128" not in case.name}


def kernel_of(case: Case) -> Any:
    """The plain function that a case launches."""
    return inspect.unwrap(case.kernel.func)


@dataclass
class Seen:
    """The observations of one launch.

    Attributes:
        results: results by name.
        arguments: arrays that the launch was given, in the state in which it left them.
        workspace_bytes: bytes of HBM that the kernel allocated, without the results that it returned.
        sums: the types in which elements were added up, with the instructions that did so.
    """

    results: dict[str, np.ndarray] = field(default_factory=dict)
    arguments: dict[str, np.ndarray] = field(default_factory=dict)
    workspace_bytes: int = 0
    sums: set[tuple[str, str]] = field(default_factory=set)

    def bits(self) -> list[bytes]:
        return [array.tobytes() for array in self.results.values()]


class _Sums(Observer):
    """Notes the types of tiles that instructions add elements up into."""

    def __init__(self, results: set[tuple[str, str]]) -> None:
        self._found = results

    def issued(self, call: Issued) -> None:
        values = dict(zip(call.definition.names, call.values, strict=True))
        name = call.definition.name
        if values.get("reduce_res") is not None and values.get("reduce_op") in (nl.add, None):
            self._found.add((name, str(values["reduce_res"].dtype)))
        if (name == "nc_matmul" and not values["is_transpose"]) or (name == "tensor_reduce" and values["op"] is nl.add):
            self._found.add((name, str(values["dst"].dtype)))


class _Watching:
    def __init__(self, results: set[tuple[str, str]]) -> None:
        self._found = results

    def watch(self, number: int, observers: Observers) -> Observer:
        return _Sums(self._found)

    def exchanged(self, inputs: Any, returned: Any) -> None:
        return

    def conclude(self, has_ended: bool) -> None:
        return


def launched(kernel: Any, cores: int, arguments: Mapping[str, Any], names: Any = None) -> Seen:
    """A launch on copies of the arrays."""
    copies = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    seen, allocated = Seen(), []

    def storing(shape: tuple[int, ...], dtype: Any, region: Any, *args: Any, **options: Any) -> Storage:
        if region in HBM:
            allocated.append(int(np.prod(shape)) * dtype.itemsize)
        return Storage(shape, dtype, region, *args, **options)

    with patch.object(creation, "Storage", storing), watching(_Watching(seen.sums)):
        returned = kernel[cores](**copies)
    arrays = {name: value for name, value in copies.items() if isinstance(value, np.ndarray)}
    results = returned if isinstance(returned, tuple | list) else (returned,)
    new = [result for result in results if not any(np.shares_memory(result, array) for array in arrays.values())]
    seen.workspace_bytes = sum(allocated) - sum(array.nbytes for array in new)
    seen.results = dict(zip(names or map(str, range(len(results))), map(np.array, results), strict=True))
    seen.arguments = arrays
    return seen


@functools.cache
def seen_of(name: str, cores: int) -> Seen:
    """The launch of a case."""
    case = CASES[name]
    return launched(case.kernel, cores, case.arguments(), case.results)


def check_bits(guarantee: Guarantee, on_one: Seen, on_two: Seen, again: Seen) -> None:
    """Check the bits of results of launches on one core, on two, and once more on two."""
    if guarantee.deterministic:
        assert on_two.bits() == again.bits(), "another run is not bitwise identical"
    if guarantee.same_bits_on_cores:
        assert on_one.bits() == on_two.bits(), "two cores and one are not bitwise identical"


def check_workspace(guarantee: Guarantee, seen: Seen, cores: int, arguments: Mapping[str, Any]) -> None:
    """Counted where tensors are allocated."""
    stated = 0 if guarantee.workspace_bytes is None else guarantee.workspace_bytes(cores=cores, **arguments)
    assert 0 <= seen.workspace_bytes <= stated, f"takes {seen.workspace_bytes} bytes, states {stated}"


def check_writes(guarantee: Guarantee, seen: Seen, arguments: Mapping[str, Any], written: str | None) -> None:
    """The inputs that a launch has changed."""
    changed = {name for name, array in seen.arguments.items() if array.tobytes() != arguments[name].tobytes()}
    assert changed == ({written} - {None}), f"changes {changed}"
    assert changed <= {guarantee.in_place}, f"changes {changed}, states {guarantee.in_place}"


def check_sums(guarantee: Guarantee, seen: Seen) -> None:
    """The types of all accumulators."""
    if guarantee.accumulator == "none":
        assert not seen.sums, f"adds up {seen.sums}"
    else:
        assert {dtype for _, dtype in seen.sums} <= {guarantee.accumulator}, f"adds up {seen.sums}"


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
    assert result - set(KERNELS) == set(), "add the family to nkilib/experimental/public_kernels.py"


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
