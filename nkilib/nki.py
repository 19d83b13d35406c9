"""The one place that chooses the NKI that nkilib's kernels run on: the real `nki`, or nkilib's simulator.

Everything else says `from nkilib.nki import nki, nisa, nl`, and `explain_index`, which NKI does not have: it words an
error of the simulator and is empty on hardware. The choice is made once, when this module is imported, from the
environment variable `NKILIB_BACKEND`:

- `auto`, which unset and empty also mean: the real NKI where it is installed, else the simulator;
- `neuron`: the real NKI, or an ImportError that says what is missing;
- `simulator`: the simulator, without looking for the real NKI.

An `nki` that is there but broken is an ImportError under `auto` too: a Neuron machine must not simulate unnoticed.
Where the real NKI is not chosen, no entry `nki` is left in `sys.modules` that was not there before.
"""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

__all__ = ["NOT_SIMULATED", "SIMULATED", "BackendChoice", "backend", "explain_index", "nisa", "nki", "nl"]

_VARIABLE: Final = "NKILIB_BACKEND"
_ALLOWED: Final = ("auto", "neuron", "simulator")
_REAL_PARTS: Final = ("nki", "nki.isa", "nki.language")
_SIMULATOR_PARTS: Final = ("nkilib.simulator.api.nki", "nkilib.simulator.api.isa", "nkilib.simulator.api.language")


@dataclass(frozen=True)
class BackendChoice:
    """Which NKI was chosen, and why.

    Attributes:
        name: "neuron" for the real NKI, "simulator" for nkilib's own.
        reason: a clause for people to read, without a full stop.
    """

    name: Literal["neuron", "simulator"]
    reason: str


class _NoRealNkiError(Exception):
    """The real NKI is absent; the message is a clause that says how one knows."""


def _is_simulator(module: ModuleType) -> bool:
    """Whether the module found under the name `nki` is nkilib's simulator, put there for somebody else's kernels."""
    return module.__name__.partition(".")[0] == "nkilib"


def _find_package() -> ModuleSpec:
    """Find the package `nki` without importing it, and without its being imported already.

    Raises:
        _NoRealNkiError: there is none, or only a directory of that name.
    """
    spec = find_spec("nki")
    if spec is None:
        raise _NoRealNkiError("no package nki is installed")
    if spec.origin is None:
        directories = ", ".join(spec.submodule_search_locations or ())
        raise _NoRealNkiError(f"no package nki is installed, only a plain directory of that name: {directories}")
    return spec


def _is_stub(spec: ModuleSpec, error: Exception) -> bool:
    """Whether `error`, raised on import, is all that there is in the package, as on the public index.

    A real NKI that lacks a dependency looks different: it has an `isa`, or the import system named what it missed.
    """
    has_isa = PathFinder.find_spec("nki.isa", spec.submodule_search_locations) is not None
    return isinstance(error, ImportError) and error.name is None and not has_isa


def _import_parts() -> list[ModuleType]:
    """Import the three modules of the real NKI; on failure take back every entry `nki` that this put in sys.modules."""
    before = set(sys.modules)
    try:
        return [import_module(part) for part in _REAL_PARTS]
    except BaseException:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "nki":
                del sys.modules[name]
        raise


def _real_nki() -> list[ModuleType]:
    """Return the modules of the real NKI, in the order of `_REAL_PARTS`.

    Raises:
        _NoRealNkiError: there is no real NKI.
        ImportError: a package `nki` is installed, is no stub, and cannot be imported.
    """
    loaded = sys.modules.get("nki")
    if loaded is not None and _is_simulator(loaded):
        raise _NoRealNkiError("the nki in sys.modules is nkilib's simulator")
    spec = _find_package() if loaded is None else None
    try:
        return _import_parts()
    except Exception as error:
        if spec is not None and _is_stub(spec, error):
            raise _NoRealNkiError(f"the installed package nki is a stub that refuses to import: {error}") from error
        raise ImportError(
            "nkilib.nki: the installed package nki cannot be imported as NKI (nki, nki.isa, nki.language): "
            f"{type(error).__name__}: {error}. Repair or remove it, or set {_VARIABLE}=simulator."
        ) from error


def _load(requested: str) -> tuple[list[ModuleType], BackendChoice]:
    """Return nki, nki.isa and nki.language of the backend that `requested` leads to, and the choice.

    Raises:
        ValueError: `requested` is not one of the allowed values.
        ImportError: the real NKI is requested and absent, or installed and broken.
    """
    if requested not in _ALLOWED:
        raise ValueError(f"nkilib.nki: {_VARIABLE} must be one of {', '.join(_ALLOWED)}; got {requested!r}.")
    reason = f"{_VARIABLE}=simulator"
    if requested != "simulator":
        try:
            modules = _real_nki()
            return modules, BackendChoice("neuron", f"the package nki is installed: {modules[0].__file__}")
        except _NoRealNkiError as absent:
            if requested == "neuron":
                raise ImportError(
                    f"nkilib.nki: {_VARIABLE}=neuron requires the real NKI, but {absent}. Install it from the Neuron "
                    f"package repository (see the AWS Neuron setup guide), or set {_VARIABLE}=simulator."
                ) from absent
            reason = str(absent)
    return [import_module(part) for part in _SIMULATOR_PARTS], BackendChoice("simulator", reason)


_modules, backend = _load(os.environ.get(_VARIABLE) or "auto")

SIMULATED: Final[bool] = backend.name == "simulator"
"""Whether kernels run on the simulator. It never changes, so NKI code may branch on it."""

NOT_SIMULATED: Final = "nkilib runs on the real NKI here, and this needs the simulator: set NKILIB_BACKEND=simulator"
"""What demo, measurements and commands say where there is no simulator for them."""

if TYPE_CHECKING:
    # The simulator has the signatures of the real NKI, which type checkers cannot count on finding.
    from nkilib.simulator.api import isa as nisa
    from nkilib.simulator.api import language as nl
    from nkilib.simulator.api import nki
    from nkilib.simulator.language.explain import explain_index
    from nkilib.simulator.numerics.operators import Operator as Operator
else:
    nki, nisa, nl = _modules
    if SIMULATED:
        from nkilib.simulator.language.explain import explain_index
    else:

        def explain_index(index: object, what: str, values: object, first_row: int, row_step: int, limit: int) -> None:
            """Nothing: on a device the DMA engine reports an index that is out of range in its own words."""
