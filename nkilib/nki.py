# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The one place that chooses the NKI that nkilib's kernels run on: the real `nki`, or nkilib's simulator.

Other modules write `from nkilib.nki import nki, nisa, nl`. They also import two functions that NKI does not have:
`explain_index` adds to an error message of the simulator, and `replayable` states that the simulator may replay a
kernel; both have no effect on hardware. The choice is made once, when this module is imported, from the environment
variable `NKILIB_BACKEND`:

- `auto`, the default: the real NKI if it is installed, else the simulator;
- `neuron`: the real NKI, or an ImportError that says what is missing;
- `simulator`: the simulator; this module does not look for the real NKI.

The kernels are written for NKI 0.7, which runs them as plain Python to specialize them. Under `auto` too, this module
raises an ImportError if the installed `nki` is older, broken, or told to parse kernels as 0.6 did
(`NKI_COMPILER_FRONTEND=custom`): a Neuron machine must not simulate unnoticed. If the simulator is chosen, this module
leaves no new entry `nki` in `sys.modules`.
"""

import os
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

from nkilib.base.installation import refuse_mixture
from nkilib.base.statements import replayable

__all__ = ["NOT_SIMULATED", "SIMULATED", "BackendChoice", "backend", "explain_index", "nisa", "nki", "nl", "replayable"]

_VARIABLE: Final = "NKILIB_BACKEND"
_ALLOWED: Final = ("auto", "neuron", "simulator")
_NEEDED: Final = "0.7"  # the release whose frontend runs kernels as Python
_FRONTEND: Final = "NKI_COMPILER_FRONTEND"
_REAL_PARTS: Final = ("nki", "nki.isa", "nki.language")
_SIMULATOR_PARTS: Final = ("nkilib.simulator.api.nki", "nkilib.simulator.api.isa", "nkilib.simulator.api.language")


@dataclass(frozen=True)
class BackendChoice:
    """The NKI that was chosen for the kernels, and the reason for the choice.

    Attributes:
        name: "neuron" for the real NKI, "simulator" for nkilib's own.
        reason: a clause for people to read, without a full stop.
    """

    name: Literal["neuron", "simulator"]
    reason: str


class _NoRealNkiError(Exception):
    """Raised if the real NKI is absent; the message is a clause that gives the evidence."""


class _UnfitNkiError(Exception):
    """Raised if the real NKI is installed, but kernels do not run on it; the message ends with a remedy, without a full
    stop.
    """


def _is_simulator(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] == "nkilib"


def _find_package() -> ModuleSpec:
    """Return the import specification of the package `nki`, without importing the package.

    Raises:
        _NoRealNkiError: there is no such package, or only a directory of that name.
    """
    spec = find_spec("nki")
    if spec is None:
        raise _NoRealNkiError("no package nki is installed")
    if spec.origin is None:
        directories = ", ".join(spec.submodule_search_locations or ())
        raise _NoRealNkiError(f"no package nki is installed, only a plain directory of that name: {directories}")
    return spec


def _is_stub(spec: ModuleSpec, error: Exception) -> bool:
    """Return whether the package is a stub, whose import only raises ``error``; the public index has such a package.

    A real NKI that lacks a dependency looks different: it has an `isa`, or the import system named the missing module.
    """
    has_isa = PathFinder.find_spec("nki.isa", spec.submodule_search_locations) is not None
    return isinstance(error, ImportError) and error.name is None and not has_isa


def _version_of(package: ModuleType) -> str | None:
    version = getattr(package, "__version__", None)
    if isinstance(version, str):
        return version
    from importlib import metadata  # takes long to import, and is hardly ever needed

    try:
        return metadata.version("nki")
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version without suffixes: (0, 7, 0) for 0.7.0b1+12; () for a text without
    numbers.
    """
    match = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", version.strip())
    return tuple(map(int, match.group(1).split("."))) if match else ()


def _check_version(package: ModuleType) -> str:
    """Return the version of the imported `nki`.

    Raises:
        _UnfitNkiError: the version is unknown or older than the kernels need, or the old frontend is requested.
    """
    needs = f"the kernels need nki {_NEEDED} or later"
    version = _version_of(package)
    if version is None:
        raise _UnfitNkiError(
            f"{needs}, and the version of the nki in {package.__file__} cannot be told: it has no __version__, and no "
            "distribution nki is installed. Install it with pip from the Neuron package repository"
        )
    if _release(version) < _release(_NEEDED):
        raise _UnfitNkiError(f"{needs}, found nki {version} in {package.__file__}. Upgrade the Neuron SDK")
    if os.environ.get(_FRONTEND) == "custom":
        raise _UnfitNkiError(
            f"{needs} with its own frontend, which runs them as Python; found nki {version} with {_FRONTEND}=custom, "
            f"which reads them as older releases did. Unset {_FRONTEND}"
        )
    return version


def _import_parts() -> tuple[list[ModuleType], str]:
    """Import the three modules of the real NKI. If that fails, remove the new entries `nki` from `sys.modules`.

    Returns:
        The modules, in the order of `_REAL_PARTS`, and their version.

    Raises:
        _UnfitNkiError: kernels do not run on this version.
        Exception: any exception of an import.
    """
    before = set(sys.modules)
    try:
        version = _check_version(import_module("nki"))
        return [import_module(part) for part in _REAL_PARTS], version
    except BaseException:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "nki":
                del sys.modules[name]
        raise


def _real_nki() -> tuple[list[ModuleType], str]:
    """Return the modules of the real NKI, in the order of `_REAL_PARTS`, and their version.

    Raises:
        _NoRealNkiError: there is no real NKI.
        ImportError: a package `nki` is installed, but cannot be imported, or kernels do not run on it.
    """
    loaded = sys.modules.get("nki")
    if loaded is not None and _is_simulator(loaded):
        raise _NoRealNkiError("the nki in sys.modules is nkilib's simulator")
    spec = _find_package() if loaded is None else None
    try:
        return _import_parts()
    except _UnfitNkiError as unfit:
        raise ImportError(f"nkilib.nki: {unfit}, or set {_VARIABLE}=simulator.") from None
    except Exception as error:
        if spec is not None and _is_stub(spec, error):
            raise _NoRealNkiError(f"the installed package nki is a stub that refuses to import: {error}") from error
        raise ImportError(
            "nkilib.nki: the installed package nki cannot be imported as NKI (nki, nki.isa, nki.language): "
            f"{type(error).__name__}: {error}. Repair or remove it, or set {_VARIABLE}=simulator."
        ) from error


def _load(requested: str) -> tuple[list[ModuleType], BackendChoice]:
    """Return nki, nki.isa and nki.language of the backend that `requested` asks for, and the choice.

    Raises:
        ValueError: `requested` is not one of the allowed values.
        ImportError: the real NKI is requested and absent, or it is installed and broken or older than 0.7.
    """
    if requested not in _ALLOWED:
        raise ValueError(f"nkilib.nki: {_VARIABLE} must be one of {', '.join(_ALLOWED)}; got {requested!r}.")
    reason = f"{_VARIABLE}=simulator"
    if requested != "simulator":
        try:
            modules, version = _real_nki()
            return modules, BackendChoice("neuron", f"nki {version} is installed: {modules[0].__file__}")
        except _NoRealNkiError as absent:
            if requested == "neuron":
                raise ImportError(
                    f"nkilib.nki: {_VARIABLE}=neuron requires the real NKI, but {absent}. Install it from the Neuron "
                    f"package repository (see the AWS Neuron setup guide), or set {_VARIABLE}=simulator."
                ) from absent
            reason = str(absent)
    return [import_module(part) for part in _SIMULATOR_PARTS], BackendChoice("simulator", reason)


refuse_mixture()
_modules, backend = _load(os.environ.get(_VARIABLE) or "auto")

SIMULATED: Final[bool] = backend.name == "simulator"
"""Whether kernels run on the simulator. It never changes, so NKI code may branch on it."""

NOT_SIMULATED: Final = "nkilib runs on the real NKI here, and this needs the simulator: set NKILIB_BACKEND=simulator"
"""The message of demo, measurements and commands where they have no simulator."""

if TYPE_CHECKING:
    # The simulator has the signatures of the real NKI, which type checkers cannot count on finding.
    from nkilib.simulator.api import isa as nisa
    from nkilib.simulator.api import language as nl
    from nkilib.simulator.api import nki
    from nkilib.simulator.isa.operators import Operator as Operator
    from nkilib.simulator.language.programs import explain_index
else:
    nki, nisa, nl = _modules
    if SIMULATED:
        from nkilib.simulator.language.programs import explain_index
    else:

        def explain_index(
            index: object,
            what: str,
            values: object,
            first_row: int,
            row_step: int,
            limit: int,
            at_fault: object = None,
        ) -> None:
            """Do nothing: on a device, the DMA engine itself reports an index that is out of range."""
