# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels of others, from clones of the repositories that publish them; none is a part of this repository."""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from benchmarks.measurements.table import PublicKernel
from nkilib.simulator import install


class SourceError(Exception):
    """A kernel that cannot be had, with what to do about it."""


class Sources:
    """Loads kernels from a directory with one clone, or one plain copy, a repository: ``DIR/owner+name``.

    A clone gives the very commit that a row names, whatever is checked out in it. Use it as a context: what it unpacks
    is deleted at its end.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unpacked = TemporaryDirectory(prefix="measured-kernels-")

    def __enter__(self) -> Sources:
        install()
        return self

    def __exit__(self, *_: object) -> None:
        self._unpacked.cleanup()

    def kernel(self, wanted: PublicKernel) -> Any:
        """The kernel, in a module of its own, with the constants that the measurement had.

        Raises:
            SourceError: if there is no clone, no such commit or file in it, or a module that it imports is missing.
        """
        root = self._files(wanted)
        try:
            module = _from_package(root, wanted) if wanted.package else _from_file(root / wanted.file, wanted)
        except ImportError as error:
            raise SourceError(f"{wanted.repository}: {wanted.file} needs a module that is missing: {error}") from error
        for name, value in wanted.constants.items():
            setattr(module, name, value)
        return getattr(module, wanted.function)

    def _files(self, wanted: PublicKernel) -> Path:
        """A directory that holds the kernel's file, or all of its package, of the wanted commit."""
        name = wanted.repository.replace("/", "+")
        clone = self.directory / name
        if not clone.is_dir():
            raise SourceError(f"git clone https://github.com/{wanted.repository} {clone}")
        if (clone / wanted.file).is_file() and not (clone / ".git").exists():
            return clone
        unpacked = Path(self._unpacked.name) / name / wanted.commit
        command = ["git", "-C", str(clone), "archive", wanted.commit, wanted.package or wanted.file]
        archive = subprocess.run(command, capture_output=True, check=False)
        if archive.returncode:
            raise SourceError(f"{' '.join(command)}: {archive.stderr.decode(errors='replace').strip()}")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(unpacked, filter="data")
        return unpacked


def _package_name(wanted: PublicKernel) -> str:
    """A name that no installed package has: packages of others may be called as ours."""
    return "measured_" + re.sub(r"\W", "_", f"{wanted.repository}_{wanted.commit}")


def _from_file(file: Path, wanted: PublicKernel) -> ModuleType:
    """The file as a new module; its name need be no Python name."""
    result = importlib.util.spec_from_file_location(_package_name(wanted), file)
    if result is None or result.loader is None:
        raise ImportError(f"no Python file: {file.name}")
    module = importlib.util.module_from_spec(result)
    with _standing_in(wanted.absent):
        result.loader.exec_module(module)
    return module


class _Unneeded(ModuleType):
    """A module with every name; each is a function that gives back what it decorates."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **_: args[0] if args else None


@contextmanager
def _standing_in(absent: Sequence[str]) -> Iterator[None]:
    """While a file is loaded, its imports of the absent modules, and of their packages, give empty ones."""
    parts = [name.split(".") for name in absent]
    names = {".".join(of[: size + 1]) for of in parts for size in range(len(of))}
    kept = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update({name: _Unneeded(name) for name in names})
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(kept)


def _from_package(root: Path, wanted: PublicKernel) -> ModuleType:
    """The file as a module of its package, which may import its neighbours relatively."""
    package = ModuleType(_package_name(wanted))
    package.__path__ = [str(root / wanted.package)]
    sys.modules.setdefault(package.__name__, package)
    inside = Path(wanted.file).relative_to(wanted.package).with_suffix("")
    return importlib.import_module(".".join([package.__name__, *inside.parts]))
