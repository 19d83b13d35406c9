# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A probe: one launch, and the readings (possible answers to a question) that its results may confirm.

:class:`Probe` is the step, and :class:`Reading` an answer. All probes share the rest:

- pages of docs/ for :attr:`Probe.row`: :data:`TENSOR_READINGS`, :data:`INSTRUCTION_READINGS` and :data:`CORE_READINGS`,
  which together are :data:`READINGS`, and :data:`KERNELS`, :data:`CROSS_ENTROPY`, :data:`PROMISES`;
- a pattern of the errors of refused accesses: :data:`OUT_OF_RANGE`;
- functions for :attr:`Probe.arguments`: :func:`same_arguments`, :func:`no_arguments`; the name of an argument after the
  launch: :func:`left`;
- arrays for arguments and expected results: :func:`row`, :func:`integer_row`, :func:`column`, :func:`indices`;
- whole tiles in kernels: :func:`loaded`, :func:`tile`, :func:`stored`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from nkilib.nki import nisa, nl
from nkilib.verify.step import Array, Observation, Status, Step, Verdict, argument_name, observed, typed

# Pages of the documentation that depend on answers.
TENSOR_READINGS: Final = "reference/simulator_readings.md"
INSTRUCTION_READINGS: Final = "reference/simulator_readings_instructions.md"
CORE_READINGS: Final = "reference/simulator_readings_cores.md"
READINGS: Final = (TENSOR_READINGS, INSTRUCTION_READINGS, CORE_READINGS)
KERNELS: Final = "reference/kernels.md"
CROSS_ENTROPY: Final = "explanation/cross_entropy_accuracy.md"
PROMISES: Final = "reference/promises.md"

# The words with which an access is refused by the Neuron runtime (NRT_EXEC_OOB) and by the simulator (OutOfRangeError).
OUT_OF_RANGE: Final = r"OOB|out.?of.?(range|bound)"
_SHOWN: Final = 24


def _agree(came: Array | None, expected: Array, tolerance: float) -> bool:
    """Return whether an array equals the expected one up to a relative tolerance; NaN equals NaN, and both zeros are
    equal.
    """
    if came is None or came.shape != expected.shape:
        return False
    came = typed(came, expected)
    if came.dtype.name.startswith("void"):
        return False
    actual, wanted = came.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - wanted) <= tolerance * np.abs(wanted)
    same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    return bool((near & np.isfinite(actual) & np.isfinite(wanted) | same).all())


@dataclass(frozen=True)
class Reading:
    """An answer to the question of a probe.

    Attributes:
        name: a clause for people to read.
        expected: the values of results by name, computed by numpy. A result without an entry may have any value.
        refused: a pattern of the error that the launch must raise; None if it must return.
        worded: an example of such an error, for tests.
    """

    name: str
    expected: Mapping[str, Array]
    refused: str | None = None
    worded: str = "OutOfRangeError: index"

    def explains(self, observation: Observation, tolerance: float) -> bool:
        """Return whether the outcome of a launch is what this reading expects: the results, or the error if
        :attr:`refused` is given.
        """
        if observation.error is not None or self.refused is not None:
            return (
                observation.error is not None
                and self.refused is not None
                and re.search(self.refused, observation.error, re.IGNORECASE) is not None
            )
        return all(_agree(observation.arrays.get(name), array, tolerance) for name, array in self.expected.items())

    def planted(self) -> Observation:
        """Return an observation that this reading explains. Tests check with it that the probe finds the reading."""
        return Observation(dict(self.expected)) if self.refused is None else Observation(error=self.worded)


def _word(value: Any) -> str:
    """Return a number as text; an element of raw bytes (``void``) as hexadecimal digits."""
    return value.tobytes().hex() if isinstance(value, np.void) else f"{float(value):g}"


def shown(observation: Observation, names: Sequence[str]) -> str:
    """Return the outcome of a launch as text: its error, or the first elements of the results named in ``names``."""
    if observation.error is not None:
        return observation.error
    parts = []
    for name in filter(observation.arrays.__contains__, names):
        array = observation.arrays[name]
        values = ", ".join(map(_word, array.ravel()[:_SHOWN]))
        parts.append(f"{name} = [{values}{', ...' if array.size > _SHOWN else ''}]")
    return "; ".join(parts)


def row(*values: float) -> Array:
    """Return a float32 array [1, n] of these values."""
    return np.array([values], np.float32)


@dataclass(frozen=True)
class Probe(Step):
    """A question that a launch answers.

    Attributes:
        question: the question that the documentation leaves open.
        row: the page of docs/ with the question, and the beginning of its table row or list item there.
        rests_on_it: the parts of the library that would be wrong if another reading than the first one were true.
        kernel: the kernel that ``nki.jit`` returned.
        arguments: a function that makes the arguments by name; its argument tells whether there is a device.
        results: the names of the returned tensors, in order.
        readings: the answers. The first one is that of the simulator, on which the kernels rely.
        num_cores: the number of cores of the launch.
        tolerance: the relative tolerance of finite values; 0 if they are exact.
    """

    question: str
    row: tuple[str, str]
    rests_on_it: str
    kernel: Any
    arguments: Callable[[bool], dict[str, Any]]
    results: Sequence[str]
    readings: Sequence[Reading]
    num_cores: int = 1
    tolerance: float = 0.0

    @property
    def cores(self) -> int:
        return self.num_cores

    @property
    def what(self) -> str:
        return self.question

    @property
    def runs_last(self) -> bool:
        """Whether the first reading expects the launch to end in an error, after which the device may be unusable."""
        return self.readings[0].refused is not None

    def observe(self, is_device: bool) -> Observation:
        return observed(self.kernel, self.arguments(is_device), self.cores, self.results)

    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        reading = self.confirmed(observation)
        expected = self.readings[0]
        details: dict[str, Any] = {
            "reading": None if reading is None else reading.name,
            "expected": expected.name,
            "rests_on_it": self.rests_on_it,
            "page": self.row[0],
            "row": self.row[1],
        }
        if reading is expected:
            return Verdict(Status.AS_EXPECTED, f"reading: {expected.name}", details)
        rests = f"on it rests: {self.rests_on_it}"
        if reading is not None:
            text = f"reading: {reading.name}; expected was: {expected.name}; {rests}"
            return Verdict(Status.DIFFERS, text, details)
        came = shown(observation, self.results)
        details["came"] = came
        if observation.error is not None:
            return Verdict(Status.FAILED, came, details)
        return Verdict(Status.DIFFERS, f"none of {len(self.readings)} readings; came: {came}; {rests}", details)

    def confirmed(self, observation: Observation) -> Reading | None:
        """Return the first reading that explains the outcome of a launch; None if no reading does."""
        return next((reading for reading in self.readings if reading.explains(observation, self.tolerance)), None)


def integer_row(*values: int) -> Array:
    """Return an int32 array [1, n] of these values."""
    return np.array([values], np.int32)


def column(*values: float) -> Array:
    """Return a float32 array [n, 1] of these values."""
    return np.array(values, np.float32)[:, np.newaxis]


def indices(*values: int) -> Array:
    """Return an int32 array [n, 1] of these values, the shape of indices for an indirect DMA."""
    return np.array(values, np.int32)[:, np.newaxis]


def no_arguments(_: bool) -> dict[str, Any]:
    """Return an empty mapping, for :attr:`Probe.arguments` of a kernel without arguments."""
    return {}


def same_arguments(**arguments: Any) -> Callable[[bool], dict[str, Any]]:
    """Return a function for :attr:`Probe.arguments` that makes the same arguments on a device and on the simulator."""
    return lambda _: arguments


def left(name: str) -> str:
    """Return the name of the argument ``name`` in an observation, which holds arguments as the launch left them."""
    return argument_name(name)


def loaded(array_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load a whole matrix [rows, columns] from HBM into a new tile of the same type, and return the tile."""
    tile_sbuf = nl.ndarray(array_hbm.shape, dtype=array_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile_sbuf, src=array_hbm)
    return tile_sbuf


def tile(shape: tuple[int, ...], dtype: nl.DType = nl.float32) -> nl.NkiTensor:
    """Return a new tile in SBUF, uninitialised."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def stored(tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Store a tile as a new result of the kernel in HBM, in the tile's type, and return the result."""
    result_hbm = nl.ndarray(tile_sbuf.shape, dtype=tile_sbuf.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result_hbm, src=tile_sbuf)
    return result_hbm
