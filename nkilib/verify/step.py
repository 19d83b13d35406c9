# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A step of ``python -m nkilib verify``: a launch, its outcome, and the judgement of the outcome.

:class:`Step` is the interface, :class:`Observation` the outcome, and :class:`Verdict` the judgement, with a
:class:`Status`. A step runs in several processes, its stages (:class:`Stage`); files pass the outcome from one to the
next. :data:`ON_DEVICE` and :data:`ON_SIMULATOR` are the usual stages with a device and without one. :func:`observed`
launches a kernel, on a device and on the simulator alike, and :func:`on_cores` returns the kernel in the form that
launches it on a number of cores. :data:`Array` is the type of all arrays of the checks.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.base import lnc

Array = npt.NDArray[Any]

# Types that numpy's files do not know are written as their bits.
_BITS: Final = {"bfloat16": (np.dtype(ml_dtypes.bfloat16), np.uint16)}
_NOTES: Final = "notes.json"
_ARRAYS: Final = "arrays.npz"


class Status(str, Enum):
    """The status of a step; the value appears in the report."""

    AS_EXPECTED = "as expected"
    DIFFERS = "differs"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    MEASURED = "measured"  # by a clock that is too coarse to judge by
    MODELLED = "modelled"
    NOT_RUN = "not run"
    RUNNING = "running"

    @property
    def is_difference(self) -> bool:
        """Whether a step with this status makes the command exit with code 1."""
        return self not in (Status.AS_EXPECTED, Status.MEASURED, Status.MODELLED, Status.NOT_RUN)

    @property
    def has_ended_badly(self) -> bool:
        """Whether a step with this status gave no information; such a step may be run again on request."""
        return self in (Status.FAILED, Status.CRASHED, Status.TIMED_OUT, Status.RUNNING)


@dataclass(frozen=True)
class Verdict:
    """The judgement of a step.

    Attributes:
        status: the status of the step.
        text: a text for people, one line or several.
        details: numbers and names for programs; JSON can represent them.
    """

    status: Status
    text: str
    details: dict[str, Any] = field(default_factory=dict)


def _bits(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    return array.view(_BITS[array.dtype.name][1]) if array.dtype.name in _BITS else array


@dataclass(frozen=True)
class Observation:
    """The outcome of a launch.

    Attributes:
        arrays: the returned arrays, and the arguments as the launch left them, by name.
        error: the error that the launch raised, as ``Type: message``; None if it returned.
        notes: further facts by name; JSON can represent them.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    error: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def with_arrays(self, more: Mapping[str, Array]) -> Observation:
        """Return a copy of the observation with additional arrays."""
        return replace(self, arrays={**self.arrays, **more})

    def with_notes(self, **more: Any) -> Observation:
        """Return a copy of the observation with additional notes."""
        return replace(self, notes={**self.notes, **more})

    def save(self, directory: Path) -> None:
        """Write the observation to files in a directory. The file that is written last marks them as complete."""
        written: dict[str, Any] = {f"{array.dtype.name}/{name}": _bits(array) for name, array in self.arrays.items()}
        np.savez(directory / _ARRAYS, **written)
        text = json.dumps({"error": self.error, "notes": self.notes})
        (directory / _NOTES).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Observation:
        """Read the files that :meth:`save` wrote.

        Raises:
            OSError: a file is missing.
        """
        saved = json.loads((directory / _NOTES).read_text(encoding="utf-8"))
        arrays = {}
        with np.load(directory / _ARRAYS) as file:
            for key in file.files:
                dtype, _, name = key.partition("/")
                arrays[name] = file[key].view(_BITS[dtype][0]) if dtype in _BITS else file[key]
        return cls(arrays, saved["error"], saved["notes"])


def typed(array: Array, like: Array) -> Array:
    """Return an array of raw bytes (``void``), as the runtime may return it, in the type of ``like``.

    An array of another type, or with elements of another size, is returned unchanged.
    """
    if array.dtype.name.startswith("void") and array.dtype.itemsize == like.dtype.itemsize:
        return array.view(like.dtype)
    return array


class Stage(str, Enum):
    """A stage of a step, run in a process of its own. The value names it on the command line of the worker."""

    LAUNCH = "launch"  # on the real NKI
    MEASURE = "measure"  # with a profiler, once the process that launched is gone
    JUDGE = "judge"  # on the simulator
    SELF_CHECK = "self-check"  # launch and judge in one process on the simulator


ON_DEVICE: Final = (Stage.LAUNCH, Stage.JUDGE)
ON_SIMULATOR: Final = (Stage.SELF_CHECK,)


@dataclass(frozen=True)
class Step(ABC):
    """A launch that answers a question about the device, and the judgement of its outcome.

    Attributes:
        name: a name that is unique among all steps.
        is_quick: whether ``--quick`` includes the step.
    """

    name: str
    is_quick: bool

    @property
    def cores(self) -> int:
        """The number of cores on which the step launches its kernel."""
        return 1

    @property
    def runs_last(self) -> bool:
        """Whether the step must run after all others, because it may leave the device in an unknown state."""
        return False

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables for the launch of this step, in addition to those that all steps get."""
        return {}

    @property
    def stages_on_device(self) -> tuple[Stage, ...]:
        """The stages that the step goes through if there is a device."""
        return ON_DEVICE

    @property
    @abstractmethod
    def what(self) -> str:
        """The question that the step answers, in one line."""

    @abstractmethod
    def observe(self, is_device: bool) -> Observation:
        """Launch the step's kernel in this process, and return the outcome."""

    @abstractmethod
    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        """Return the verdict on an outcome. The simulator is available to compute the expected results.

        ``is_device`` tells whether the outcome came from a device.
        """

    def measure(self, observation: Observation, directory: Path) -> Observation:
        """Return the observation with the data of the stage :attr:`Stage.MEASURE` added; steps without this stage add
        nothing.

        ``directory`` has the files that the launch left.
        """
        return observation


def on_cores(kernel: Any, cores: int) -> Any:
    """Return what to call to launch a kernel on ``cores`` cores: the kernel itself if ``NEURON_LOGICAL_NC_CONFIG``
    states this number, else ``kernel[cores]``.
    """
    setting = lnc.of_variable()
    return kernel if setting is not None and setting.cores == cores else kernel[cores]


def argument_name(name: str) -> str:
    """Return the name of the argument ``name`` in an observation, which holds arguments as the launch left them."""
    return f"argument {name}"


def observed(kernel: Any, arguments: Mapping[str, Any], cores: int, names: Sequence[str]) -> Observation:
    """Launch a kernel on copies of its arrays, on a device and on the simulator alike.

    ``nki.jit`` of NKI 0.7 takes numpy arrays and compiles and runs the kernel without a framework (its docstring in SDK
    2.33.1, ``_modules/nki``). Whether it updates an array that the kernel writes is one of the probes.

    Args:
        kernel: a kernel from ``nki.jit``.
        arguments: the arguments by name.
        cores: the number of cores of the launch.
        names: the names of the returned tensors, in order.

    Returns:
        The returned arrays by these names, and each argument array as ``argument <name>``; or the error.
    """
    copies = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    try:
        returned = on_cores(kernel, cores)(**copies)
        results = returned if isinstance(returned, tuple | list) else (returned,)
        arrays = {name: np.array(result) for name, result in zip(names, results, strict=True)}
    except Exception as error:  # of the simulator, of NKI, of its compiler or of the runtime
        return Observation(error=f"{type(error).__name__}: {error}")
    left = {argument_name(name): value for name, value in copies.items() if isinstance(value, np.ndarray)}
    return Observation({**arrays, **left})
