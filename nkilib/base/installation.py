# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The installation on this machine: packages named nkilib, how to install extras, and Neuron devices.

:func:`refuse_mixture` and :func:`other_copies` find packages named nkilib, :func:`extra_remedy` tells how to install an
extra, and :func:`visible_devices` lists the devices that can be opened.

The Neuron compiler of AWS also installs a package named nkilib, with other modules. This package may precede that one
on the import path (``docs/how_to/install_beside_the_sdk.md``). A *mixture* is an imported nkilib with modules of both
packages. Everything here works in a mixture, and imports nothing of nkilib.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from typing import Final, NamedTuple

HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The directory of this nkilib."""

# Packages that the other nkilib has too, outer ones first.
_SHARED: Final = ("nkilib", "nkilib.core", "nkilib.experimental", "nkilib.experimental.loss")
_INIT: Final = "nkilib/__init__.py"


def extra_remedy(extra: str) -> str:
    """Return the instruction to install nkilib with an extra, such as ``"torch"``.

    The instruction starts from a checkout or a wheel, because no package index has nkilib.
    """
    return (
        f"install nkilib with its extra {extra!r}: pip install '.[{extra}]' in a checkout, or "
        f"'./nkilib-VERSION-py3-none-any.whl[{extra}]'"
    )


def visible_devices(root: str = "/") -> list[str]:
    """Return the paths of the Neuron devices that can be opened: ``/dev/neuron0`` and so on. Tests pass another
    ``root``.
    """
    return sorted(glob.glob(f"{root}dev/neuron[0-9]*"))


class Copy(NamedTuple):
    """A package named nkilib on the import path.

    Attributes:
        directory: the directory of the package.
        owners: the distributions that installed its ``__init__.py``, as ``name version``.
    """

    directory: str
    owners: tuple[str, ...]


def _is_ours(package: object) -> bool:
    # False is the mark of this package: another package that has overwritten ``nkilib/__init__.py`` lacks it.
    return getattr(package, "_IS_BUNDLED", None) is False


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _message(name: str, origin: str | None) -> str:
    if origin is not None and _is_same(os.path.dirname(origin), HOME):
        remedy = (
            "Both are in that directory: uninstall nkilib, reinstall the other package, and install nkilib again, "
            "which has a directory of its own"
        )
    else:
        remedy = (
            f"Put {os.path.dirname(HOME)} first on the import path, in PYTHONPATH, or install nkilib with pip, which "
            "puts it before the other"
        )
    return (
        f"nkilib: modules of {HOME} are mixed with another package nkilib (the Neuron compiler installs one): {name} "
        f"is {origin or 'missing'}. {remedy} (docs/how_to/install_beside_the_sdk.md)."
    )


def mixture() -> str | None:
    """Return a message that describes a mixture, with paths and remedy; None if all of nkilib is this package."""
    paths: dict[str, Sequence[str]] = {"": sys.path}
    for name in _SHARED:
        module = sys.modules.get(name)
        spec = module.__spec__ if module is not None else PathFinder.find_spec(name, paths[name.rpartition(".")[0]])
        if spec is None:  # not on the path: a program in one file, for example, which finds modules in other ways
            return None
        home = os.path.join(os.path.dirname(HOME), *name.split("."))
        is_here = spec.origin is not None and _is_same(os.path.dirname(spec.origin), home)
        if not is_here or (name == "nkilib" and not _is_ours(module)):
            return _message(name, spec.origin)
        paths[name] = list(module.__path__ if module is not None else spec.submodule_search_locations or ())
    return None


def refuse_mixture() -> None:
    """Raise an error if the imported nkilib is a mixture of this package and another one.

    Raises:
        ImportError: there is a mixture; the message names both places and the remedy.
    """
    message = mixture()
    if message is not None:
        # Python goes on with `python -m nkilib` in spite of an error of this name, and so reaches the doctor.
        raise ImportError(message, name="nkilib")


def _owners() -> Iterator[tuple[str, str]]:
    """Yield (directory, ``"name version"``) for each installed package named nkilib: the directory of the package, and
    the distribution that installed it.
    """
    from importlib import metadata  # takes longer to import than all else here, and only the doctor asks

    for distribution in metadata.distributions():
        record = distribution.read_text("RECORD") or ""
        if f"\n{_INIT}," in f"\n{record}":
            directory = os.path.dirname(os.path.realpath(str(distribution.locate_file(_INIT))))
            yield directory, f"{distribution.metadata['Name']} {distribution.version}"


def _is_our_name(owner: str) -> bool:
    return owner.startswith("nkilib ")


def other_copies() -> list[Copy]:
    """Return the other packages named nkilib on the import path.

    This package is among them if another distribution has also installed files into its directory.
    """
    owners: dict[str, tuple[str, ...]] = {}
    for directory, owner in _owners():
        owners[directory] = (*owners.get(directory, ()), owner)
    directories = dict.fromkeys(os.path.realpath(os.path.join(path or os.curdir, "nkilib")) for path in sys.path)
    copies = [
        Copy(directory, owners.get(directory, ()))
        for directory in directories
        if os.path.isfile(os.path.join(directory, "__init__.py"))
    ]
    return [copy for copy in copies if not _is_same(copy.directory, HOME) or not all(map(_is_our_name, copy.owners))]
