# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Copies of the checkout, in which mutants live and tests run: the checkout itself is only read.

:func:`mutants_in` finds the mutants of files, :func:`copies_of` makes the copies, :func:`tests_of` finds the tests of a
file, and :func:`run` runs them in a :class:`Copy`.
"""

from __future__ import annotations

import compileall
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from py_compile import PycInvalidationMode

from .operators import Mutation, mutations_of

_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".hypothesis", ".*_cache", "__pycache__", "*.egg-info", "build", "dist"
)


@dataclass(frozen=True)
class Mutant:
    """A change of a file of the checkout.

    Attributes:
        path: the path of the file, relative to the root of the checkout.
        change: the change of its source.
    """

    path: str
    change: Mutation

    @property
    def place(self) -> str:
        """The place of the change as ``path:line``."""
        return f"{self.path}:{self.change.line}"


def mutants_in(root: Path, packages: list[str]) -> list[Mutant]:
    """Return all mutants of the files in packages, or of single files, in a fixed order.

    Raises:
        ValueError: a package does not exist or has no Python file.
    """
    paths: set[str] = set()
    for package in packages:
        inputs = root / package
        results = [inputs] if inputs.is_file() else sorted(inputs.rglob("*.py"))
        if not results:
            raise ValueError(
                f"mutate: a package must be a folder of Python files or a file below {root}, got {package!r}; "
                "name it as nkilib/core"
            )
        paths.update(path.relative_to(root).as_posix() for path in results)
    return [Mutant(path, change) for path in sorted(paths) for change in mutations_of((root / path).read_text("utf-8"))]


def copies_of(checkout: Path, folder: Path, count: int) -> list[Copy]:
    """Make copies of the checkout in an empty folder.

    The modules that tests import are compiled once. Their caches are checked by hashes of the sources, because file
    times may miss a change.
    """
    first = folder / "copy0"
    shutil.copytree(checkout, first, ignore=_NOT_COPIED, symlinks=True)
    for name in ("nkilib", "tests"):
        compileall.compile_dir(first / name, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    roots = [first, *(folder / f"copy{number}" for number in range(1, count))]
    for root in roots[1:]:
        shutil.copytree(first, root, symlinks=True)
    return [Copy(checkout, root) for root in roots]


@dataclass(frozen=True)
class Copy:
    """A copy of a checkout, which holds one mutant at a time.

    Attributes:
        checkout: the folder of the checkout that was copied.
        root: the folder of the copy.
    """

    checkout: Path
    root: Path

    def write(self, mutant: Mutant, raises: bool = False) -> None:
        """Write a mutant into the copy; with ``raises``, replace the expression by one that raises an exception."""
        source = (self.checkout / mutant.path).read_text("utf-8")
        (self.root / mutant.path).write_text(
            mutant.change.raising(source) if raises else mutant.change.applied(source), "utf-8"
        )

    def restore(self, mutant: Mutant) -> None:
        """Restore the file of a mutant and delete the examples that hypothesis has stored."""
        shutil.copyfile(self.checkout / mutant.path, self.root / mutant.path)
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)


# Select the tests that belong to a file, and run them in a copy of the checkout.

_PLANS = "tests/experimental/plans"
# How many folders below nkilib a package of its own is, by where it is.
_LOSSES = ("nkilib", "experimental", "loss")
_PASSED = (0, 5)  # 5: no test was collected
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::(?:[^ ]| (?!- ))+)?)", re.MULTILINE)
_OPTIONS = ("-x", "-q", "-rfE", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")


class Outcome(Enum):
    """The outcome of a run of tests."""

    PASSED = "passed"
    FAILED = "failed"
    LATE = "timed out"


@dataclass(frozen=True)
class Run:
    """A run of pytest.

    Attributes:
        outcome: the outcome of the run.
        test: the name that pytest gives to the test that failed; "" if no test failed or pytest named none, as when the
            import of a conftest fails.
    """

    outcome: Outcome
    test: str = ""


def tests_of(root: Path, path: str) -> list[str]:
    """Return the tests of a file of nkilib, nearest first: the tests of the file, of its folder, and of its package.

    The tests of ``nkilib/a/b/c.py`` are ``tests/a/b/test_c.py`` and ``tests/a/b``, or the nearest parent folder that
    exists. The tests of its package are ``tests/a/b``, or ``tests/experimental/loss/b`` for a loss. For kernels the
    tests of plans are added. The folder of all tests is never returned.
    """
    parts = PurePosixPath(path).parts
    tests = PurePosixPath("tests", *parts[1:-1])
    depth = 4 if parts[:3] == _LOSSES else 3
    results = [str(tests / f"test_{PurePosixPath(path).stem}.py"), str(_nearest(root, tests))]
    results.append(str(_nearest(root, PurePosixPath(*tests.parts[:depth]))))
    if parts[:2] == _LOSSES[:2]:
        results.append(_PLANS)
    return [item for item in dict.fromkeys(results) if item != "tests" and (root / item).exists()]


def _nearest(root: Path, tests: PurePosixPath) -> PurePosixPath:
    while len(tests.parts) > 1 and not (root / tests).is_dir():
        tests = tests.parent
    return tests


def run(root: Path, tests: list[str], seconds: float, *options: str) -> Run:
    """Run tests of a copy until one fails. A run that exceeds ``seconds`` is killed with all its processes."""
    command = [sys.executable, "-m", "pytest", *_OPTIONS, *options, *tests]
    with tempfile.TemporaryFile() as output:  # a process that outlives the run would keep a pipe open
        process = subprocess.Popen(
            command, cwd=root, env=_environment(root), stdout=output, stderr=output, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(seconds, 0.0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code == -signal.SIGKILL:  # by the limit, or by the system where memory is short
        return Run(Outcome.LATE)
    if code in _PASSED:
        return Run(Outcome.PASSED)
    named = _FAILED.search(text)
    return Run(Outcome.FAILED, named.group(1) if named else "")


def imported_from(root: Path, module: str) -> Path:
    """Return the folder from which the tests of a copy import a package."""
    code = f"import {module}, pathlib; print(pathlib.Path({module}.__file__).resolve().parent)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=_environment(root), capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip().splitlines()[-1])


def _environment(root: Path) -> dict[str, str]:
    """Return the environment of a run: one thread, imports from the copy, no bytecode, reproducible random inputs."""
    changed = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "CI": "1"}
    return {**os.environ, **changed}
