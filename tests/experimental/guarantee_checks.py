# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Observations of a kernel's launch that concern its guarantee, and checks of each claim against them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from nkilib.base.guarantee import Guarantee
from nkilib.nki import nl
from nkilib.simulator.language import creation
from nkilib.simulator.machine.observer import Issued, Observer, Observers, watching
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.terms.regions import HBM
from nkilib.verify.kernels.case import Case
from nkilib.verify.kernels.registry import cases

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
