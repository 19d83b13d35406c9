# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A plugin of pytest that checks which CPU instructions the libraries of this process compute with.

``python -m tools.machine_settings`` sets variables by which PyTorch, numpy and OpenBLAS leave out instructions of the
CPU. A library ignores a name that it does not know, so every process of pytest asks the libraries themselves.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

EXPECTED: Final = "NKILIB_EXPECTED_MACHINE"
COUNTS: Final = "NKILIB_MACHINE_COUNTS"
# What the function is called, of which numpy's own OpenBLAS and that of a distribution are built with one.
_CORE_NAMES = tuple(f"{prefix}openblas_get_corename{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", ""))


@dataclass(frozen=True)
class Machine:
    """The state that a test run expects of its libraries. An attribute that is None is not checked.

    Attributes:
        torch: the result of ``torch.backends.cpu.get_cpu_capability()``.
        numpy_off: the groups of CPU features that numpy must not use.
        openblas: the kind of CPU whose kernels numpy's OpenBLAS uses.
        threads: the number of threads of PyTorch.
    """

    torch: str | None = None
    numpy_off: tuple[str, ...] = ()
    openblas: str | None = None
    threads: int | None = None

    def to_text(self) -> str:
        """Return a text for an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Machine:
        """Return the machine that :meth:`to_text` described."""
        results = json.loads(text)
        return cls(**{**results, "numpy_off": tuple(results["numpy_off"])})

    def differences(self) -> list[str]:
        """Return one sentence for every difference between this process and the expected machine."""
        results = []
        if self.torch is not None and (inputs := torch_capability()) != self.torch:
            results.append(f"PyTorch must compute with {self.torch}, and does with {inputs}")
        if still_on := [name for name in self.numpy_off if numpy_features().get(name, False)]:
            results.append(f"numpy must leave out {', '.join(still_on)}")
        if self.openblas is not None and (core := openblas_core()) != self.openblas.lower():
            results.append(f"OpenBLAS must have its kernels for {self.openblas.lower()}, and has those for {core}")
        if self.threads is not None and (threads := _torch().get_num_threads()) != self.threads:
            results.append(f"PyTorch must have {self.threads} threads, and has {threads}")
        return results


def _torch() -> Any:
    return import_module("torch")


def torch_capability() -> str:
    """Return which vector code PyTorch has chosen: DEFAULT, AVX2, AVX512, or another one."""
    return str(_torch().backends.cpu.get_cpu_capability())


def _numpy_core() -> Any:
    """Return numpy's module that detects the CPU. It had another name before numpy 2."""
    try:
        return import_module("numpy._core._multiarray_umath")
    except ImportError:
        return import_module("numpy.core._multiarray_umath")


def numpy_features() -> dict[str, bool]:
    """Return, for every CPU feature and group of features, whether numpy detects it and may use it."""
    return dict(_numpy_core().__cpu_features__)


def numpy_groups() -> list[str]:
    """Return the groups beyond the baseline for which this numpy has code and which this CPU has."""
    features = numpy_features()
    return [name for name in _numpy_core().__cpu_dispatch__ if features.get(name, False)]


def openblas_core() -> str | None:
    """Return the kind of CPU that numpy's OpenBLAS has chosen, in lower case, or None if numpy has another BLAS."""
    try:
        library = ctypes.CDLL(str(import_module("numpy.linalg._umath_linalg").__file__))
    except (ImportError, OSError):
        return None
    for name in _CORE_NAMES:
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype = ctypes.c_char_p
            return str(function().decode()).lower()
    return None


def pytest_configure() -> None:
    """Refuse to run tests in a process that differs from the expected machine; workers of xdist check this too."""
    if EXPECTED in os.environ and (result := Machine.from_text(os.environ[EXPECTED]).differences()):
        raise pytest.UsageError("tools.machine_checks: " + "; ".join(result))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the number of tests by outcome, and the names of failed tests, if the caller asked for them."""
    if COUNTS not in os.environ:
        return
    stats = terminalreporter.stats
    counts = {kind: len(stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    names = [report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])]
    Path(os.environ[COUNTS]).write_text(json.dumps({"counts": counts, "names": names}), encoding="utf-8")
