# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Copies of the checkout, in which mutants live: the checkout itself is only read."""

from __future__ import annotations

import compileall
import shutil
from dataclasses import dataclass
from pathlib import Path
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
