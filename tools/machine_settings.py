# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run pytest as on other machines: once for each setting by which libraries leave out instructions of this CPU.

``python -m tools.machine_settings [--only NAME] [--list] [arguments of pytest]`` runs pytest in a fresh process for
each setting, which asks the libraries whether they obey (:mod:`tools.machine_checks`), and prints a table of what
passed and what failed. A setting is left out, with a line that says so, only where the CPU lacks what it needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.machine_checks import COUNTS, EXPECTED, Machine, numpy_features, numpy_groups, openblas_core

CHECKOUT: Final = Path(__file__).resolve().parent.parent
PLAINEST: Final = "plainest"
_ATEN, _NUMPY, _OPENBLAS = "ATEN_CPU_CAPABILITY", "NPY_DISABLE_CPU_FEATURES", "OPENBLAS_CORETYPE"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# OpenBLAS's kernels for a kind of CPU, and a feature without which they end the process.
_CORES: Final = {"Nehalem": "SSE42", "Haswell": "AVX2", "SkylakeX": "AVX512F"}


@dataclass(frozen=True)
class Setting:
    """One setting under which pytest runs.

    Attributes:
        name: the name in ``--only`` and in the table.
        environment: the environment variables of the process.
        machine: the state that the libraries must report under this setting.
        lacks: the thing that the setting needs and this machine lacks; empty if the setting can run.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    lacks: str = ""


def settings() -> list[Setting]:
    """Return all settings for this machine. Each one changes one thing, and the last one changes everything."""
    features, groups = numpy_features(), numpy_groups()
    result = [Setting("unchanged"), _of_torch("default"), _of_torch("avx2", "AVX2")]
    result.append(_of_numpy("numpy-no-avx512", [name for name in groups if _is_avx512(name)]))
    result.append(_of_numpy("numpy-baseline", groups))
    result += [_of_openblas(core, needed, features) for core, needed in _CORES.items()]
    result += [_of_threads(count) for count in (1, 2)]
    return [*result, plainest(result)]


def plainest(results: Sequence[Setting]) -> Setting:
    """Return a setting that combines, as far as they can run here, the plainest settings of PyTorch, numpy and
    OpenBLAS, and that of one thread.
    """
    chosen = {result.name: result for result in results if not result.lacks}
    names = ("torch-default", "numpy-baseline", "openblas-nehalem", "threads-1")
    parts = [chosen[name] for name in names if name in chosen]
    environment = {name: value for part in parts for name, value in part.environment.items()}
    expected = [part.machine for part in parts]
    return Setting(
        PLAINEST,
        environment,
        Machine(
            torch=next((item.torch for item in expected if item.torch), None),
            numpy_off=next((item.numpy_off for item in expected if item.numpy_off), ()),
            openblas=next((item.openblas for item in expected if item.openblas), None),
            threads=next((item.threads for item in expected if item.threads), None),
        ),
    )


def _of_torch(capability: str, needed: str | None = None) -> Setting:
    lacks = "" if needed is None or numpy_features().get(needed, False) else f"a CPU with {needed}"
    return Setting(f"torch-{capability}", {_ATEN: capability}, Machine(torch=capability.upper()), lacks)


def _is_avx512(group: str) -> bool:
    """Return whether a group is one of AVX-512. numpy 2.4 calls the first such group X86_V4."""
    return group.startswith("AVX512") or group == "X86_V4"


def _of_numpy(name: str, groups: Sequence[str]) -> Setting:
    lacks = "" if groups else "a CPU with features beyond those that this numpy leaves out in the setting"
    return Setting(name, {_NUMPY: " ".join(groups)}, Machine(numpy_off=tuple(groups)), lacks)


def _of_openblas(core: str, needed: str, features: Mapping[str, bool]) -> Setting:
    lacks = "" if features.get(needed, False) else f"a CPU with {needed}"
    if openblas_core() is None:
        lacks = "a numpy that computes with OpenBLAS"
    return Setting(f"openblas-{core.lower()}", {_OPENBLAS: core}, Machine(openblas=core), lacks)


def _of_threads(count: int) -> Setting:
    lacks = "" if (os.cpu_count() or 1) >= count else f"{count} cores"
    return Setting(f"threads-{count}", {name: str(count) for name in _THREADS}, Machine(threads=count), lacks)


def environment_of(setting: Setting) -> dict[str, str]:
    """Return this process's environment with the variables of this setting and without those of other settings."""
    ours = (_ATEN, _NUMPY, _OPENBLAS, EXPECTED, COUNTS)
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {"OMP_NUM_THREADS": "1", **kept, **setting.environment, EXPECTED: setting.machine.to_text()}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run of pytest.

    Attributes:
        counts: the number of tests that are ``passed``, ``failed``, ``error`` and ``skipped``; empty if pytest did not
            reach its summary.
        names: the names of the tests that failed.
        seconds: the wall time in seconds.
        status: the exit status of pytest.
    """

    counts: Mapping[str, int]
    names: Sequence[str]
    seconds: float
    status: int


def run(setting: Setting, arguments: Sequence[str]) -> Outcome:
    """Run pytest in a process with a setting. The process inherits the standard streams."""
    start = time.monotonic()
    with TemporaryDirectory() as directory:
        counts = Path(directory) / "counts.json"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tools.machine_checks", *arguments],
            cwd=CHECKOUT,
            env={**environment_of(setting), COUNTS: str(counts)},
            check=False,
        )
        results = json.loads(counts.read_text()) if counts.exists() else {"counts": {}, "names": []}
    return Outcome(results["counts"], results["names"], time.monotonic() - start, done.returncode)


def table(outcomes: Mapping[str, Outcome], left_out: Sequence[Setting]) -> str:
    """Return a table with a line for each setting, followed by the names of its failed tests."""
    kinds = ("passed", "failed", "error", "skipped")
    lines = [f"{'setting':<18}" + "".join(f"{kind:>9}" for kind in (*kinds, "seconds"))]
    for name, outcome in outcomes.items():
        cells = [str(outcome.counts.get(kind, "-")) for kind in kinds]
        line = f"{name:<18}" + "".join(f"{cell:>9}" for cell in (*cells, f"{outcome.seconds:.0f}"))
        lines.append(line if outcome.counts else f"{line}  pytest ended with {outcome.status}, without a summary")
        lines += [f"    {test}" for test in outcome.names]
    return "\n".join([*lines, *(f"{entry.name:<18}left out, needs {entry.lacks}" for entry in left_out)])


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a test failed under any setting, or if a library ignored its setting."""
    parser = argparse.ArgumentParser(prog="python -m tools.machine_settings", description=__doc__)
    every = settings()
    parser.add_argument("--only", action="append", choices=[entry.name for entry in every], help="may be repeated")
    parser.add_argument("--list", action="store_true", help="print the settings and their variables, and run nothing")
    options, rest = parser.parse_known_args(arguments)
    chosen = [entry for entry in every if options.only is None or entry.name in options.only]
    if options.list:
        for element in chosen:
            print(
                f"{element.name:<18}{dict(element.environment)}" + (f", needs {element.lacks}" if element.lacks else "")
            )
        return 0
    outcomes = {}
    for setting in chosen:
        if not setting.lacks:
            print(f"== {setting.name}: {dict(setting.environment)}", flush=True)
            outcomes[setting.name] = run(setting, rest)
    print(table(outcomes, [item for item in chosen if item.lacks]))
    return int(any(outcome.status != 0 for outcome in outcomes.values()) or not outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
