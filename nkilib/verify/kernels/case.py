# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of a kernel of the library, and the comparison of its results with float64 and the simulator.

:class:`Case` is the launch, :class:`Reference` the expected value of a result, and :func:`judged` compares the two. A
*value class* says what kind of number an element is: NaN, an infinity, normal, subnormal, or zero, with its sign
(:data:`CLASSES`). The results of a device and of the simulator are compared by the value classes of their elements
(:func:`class_difference`) and by their :func:`distance` in units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.verify.step import Array, Observation, Status, Step, Verdict, argument_name, observed, typed

CLASSES: Final = ("NaN", "+inf", "-inf", "+normal", "-normal", "+subnormal", "-subnormal", "+0", "-0")
_SMALLEST_NORMAL: Final = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}


def is_float(array: Array) -> bool:
    """Return whether an array has one of the floating-point types in which kernels compute."""
    return array.dtype.name in _SMALLEST_NORMAL


def classes_of(array: Array) -> npt.NDArray[np.int8]:
    """Return the value class of each element, as an index in ``CLASSES``. The array must satisfy :func:`is_float`."""
    values = array.astype(np.float32)  # exact
    size, negative = np.abs(values), np.signbit(values)
    classes = np.select(
        [np.isnan(values), np.isinf(values), size >= _SMALLEST_NORMAL[array.dtype.name], size > 0],
        [np.int8(0), np.int8(1) + negative, np.int8(3) + negative, np.int8(5) + negative],
        default=np.int8(7) + negative,
    )
    return classes.astype(np.int8)


@dataclass(frozen=True)
class ClassDifference:
    """The elements of a result whose value class is not the expected one.

    Attributes:
        count: the number of these elements.
        rows: the indices of these elements along the first dimension.
        index: the index of the first of these elements.
        came: the value class of the first of these elements.
        expected: the value class that this element should have.
    """

    count: int
    rows: tuple[int, ...]
    index: tuple[int, ...]
    came: str
    expected: str

    def __str__(self) -> str:
        place, rows = (", ".join(map(str, numbers)) for numbers in (self.index, self.rows))
        return (
            f"{self.count} of another class, in rows {rows}; the first [{place}]: {self.came} came, "
            f"{self.expected} was expected"
        )


def class_difference(came: Array, expected: Array) -> ClassDifference | None:
    """Return the elements of ``came`` whose value class differs from that in ``expected``; None if all classes are
    equal, or for integers.
    """
    if not is_float(came) or not is_float(expected):
        return None
    came_classes, expected_classes = classes_of(came), classes_of(expected)
    places = np.argwhere(came_classes != expected_classes)
    if len(places) == 0:
        return None
    index = tuple(int(number) for number in places[0])
    rows = tuple(sorted({int(place[0]) for place in places}))
    return ClassDifference(len(places), rows, index, CLASSES[came_classes[index]], CLASSES[expected_classes[index]])


@dataclass(frozen=True)
class Distance:
    """The distance of a result from the simulator's result of the same launch.

    Attributes:
        same_bits: the share of bitwise identical elements.
        most_ulp: the largest distance of finite elements in units in the last place; 0 for integers.
    """

    same_bits: float
    most_ulp: int

    def __str__(self) -> str:
        if self.same_bits == 1.0:
            return "the simulator's bits"
        return f"{self.same_bits:.1%} have the simulator's bits, the others are at most {self.most_ulp} ulp from it"


def _in_order(bits: npt.NDArray[np.int64], dtype: np.dtype[np.generic]) -> npt.NDArray[np.int64]:
    """Return the bits of floats as integers in the order of the floats, so that neighbouring floats differ by 1."""
    lowest = int(np.iinfo(dtype).min)  # type: ignore[type-var]
    return np.where(bits < 0, lowest - bits, bits)


def distance(came: Array, expected: Array) -> Distance:
    """Return the distance of a result from the simulator's result, which has the same shape and type."""
    if not is_float(came):
        return Distance(float((came == expected).mean()), 0)
    bits = np.dtype(f"int{8 * came.dtype.itemsize}")
    first, second = (
        _in_order(np.ascontiguousarray(array).view(bits).astype(np.int64), bits) for array in (came, expected)
    )
    finite = np.isfinite(came.astype(np.float32)) & np.isfinite(expected.astype(np.float32))
    steps = np.abs(first - second)[finite]
    return Distance(float((first == second).mean()), int(steps.max(initial=0)))


class Reference(NamedTuple):
    """The expected value of a result.

    Attributes:
        exact: the value in float64, or exactly, as integers.
        bound: the largest accepted error of each element; None means that every element must be equal.
        is_defined: a mask of the elements for which the value is defined; None for all. Of the other elements, only the
            value class is compared with the simulator's.
    """

    exact: Array
    bound: Array | None = None
    is_defined: Array | None = None

    def worst_error(self, came: Array) -> float:
        """Return the largest ratio of an element's error to its bound; infinite if an element has another value class.

        Without a bound, return 0 if all elements are equal, else infinity.
        """
        if self.bound is None:
            return 0.0 if np.array_equal(came, self.exact) else np.inf
        with np.errstate(all="ignore"):
            beyond = np.abs(self.exact) > np.finfo(np.float32).max
            exact = np.where(beyond, np.copysign(np.inf, self.exact), self.exact)  # float32 cannot hold it
            errors = error_over_bound(came, exact, self.bound)
        return float((errors if self.is_defined is None else errors[self.is_defined]).max(initial=0.0))


References = Mapping[str, Reference]
Names = Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]]


@dataclass(frozen=True)
class JudgedResult:
    """The comparison of a result with float64 and the simulator.

    Attributes:
        name: the name of the result.
        wrong: a message about an unexpected value, shape or type; empty if there is none.
        worst: the largest ratio of an element's error to its bound; None if there is no reference.
        distance: the distance from the simulator's result; None if shape or type differ.
    """

    name: str
    wrong: str
    worst: float | None
    distance: Distance | None

    def __str__(self) -> str:
        error = "" if self.worst is None else f"error {self.worst:.3g} of its bound, "
        return f"{error}{self.distance}" if self.distance is not None else "of another shape or type"

    def details(self) -> dict[str, Any]:
        """Return the entries for the JSON report. An infinite ratio becomes None, because JSON has no infinity."""
        worst = None if self.worst is None or not np.isfinite(self.worst) else self.worst
        details: dict[str, Any] = {"worst_error_over_bound": worst, "wrong": self.wrong}
        if self.distance is not None:
            details |= {"same_bits_as_simulator": self.distance.same_bits, "most_ulp": self.distance.most_ulp}
        return details


def judged(name: str, came: Array, simulated: Array, reference: Reference | None) -> JudgedResult:
    """Return the comparison of a result with the simulator's result and, if there is one, with the float64 reference.

    Args:
        name: the name of the result.
        came: the result.
        simulated: the simulator's result of the same launch.
        reference: the float64 reference, or None.
    """
    came = typed(came, simulated)
    if (came.shape, came.dtype) != (simulated.shape, simulated.dtype):
        wrong = f"{name}: {came.dtype}{list(came.shape)} came, {simulated.dtype}{list(simulated.shape)} was expected"
        return JudgedResult(name, wrong, None, None)
    worst = None if reference is None else reference.worst_error(came)
    difference = class_difference(came, simulated)
    wrong = ""
    if difference is not None:
        wrong = f"{name}: {difference} by the simulator"
    elif worst is not None and not worst <= 1.0:
        wrong = f"{name}: the error is {worst:.3g} times what float32 explains, beside float64"
    return JudgedResult(name, wrong, worst, distance(came, simulated))


@dataclass(frozen=True)
class Case(Step):
    """A launch of a kernel of the library, as a step of the verification.

    Attributes:
        sizes: the rows and columns of the inputs, such as positions and classes, which the report shows.
        kernel: the kernel that ``nki.jit`` returned.
        arguments: a function that makes the arguments by name, the same ones every time.
        names: the names of the returned tensors, in order, or a function from the arguments to these names.
        references: a function from the arguments to the references of results. A result without a reference is only
            compared with the simulator's, by value classes.
        num_cores: the number of cores of the launch.
        written: the name of the argument that the kernel overwrites, or None.
    """

    sizes: tuple[int, int]
    kernel: Any
    arguments: Callable[[], dict[str, Any]]
    names: Names
    references: Callable[[Mapping[str, Any]], References]
    num_cores: int
    written: str | None = None

    @cached_property
    def results(self) -> Sequence[str]:
        """The names of the tensors that the kernel returns, in order."""
        return self.names(self.arguments()) if callable(self.names) else self.names

    @property
    def cores(self) -> int:
        return self.num_cores

    @property
    def what(self) -> str:
        return f"{self.sizes[0]} x {self.sizes[1]}, {self.cores} core{'s' * (self.cores > 1)}"

    def observe(self, is_device: bool) -> Observation:
        return observed(self.kernel, self.arguments(), self.cores, self.results)

    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        if observation.error is not None:
            return Verdict(Status.FAILED, observation.error)
        arguments = self.arguments()
        expected = self.observe(is_device=False)
        if expected.error is not None:
            return Verdict(Status.FAILED, f"on the simulator: {expected.error}")
        references = self.references(arguments)
        judged_results = [
            judged(name, observation.arrays[name], expected.arrays[name], references.get(name)) for name in self.results
        ]
        wrong = [result.wrong for result in judged_results if result.wrong]
        wrong += self._changed(observation, arguments)
        lines = [f"{result.name}: {result}" for result in judged_results]
        details = {result.name: result.details() for result in judged_results}
        if wrong:
            return Verdict(Status.DIFFERS, "\n".join([*wrong, *lines]), details)
        return Verdict(Status.AS_EXPECTED, "\n".join(lines), details)

    def _changed(self, observation: Observation, arguments: Mapping[str, Any]) -> list[str]:
        return [
            f"{name}: changed by the launch, which only reads it"
            for name, value in arguments.items()
            if isinstance(value, np.ndarray)
            and name != self.written
            and observation.arrays[argument_name(name)].tobytes() != value.tobytes()
        ]
