# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Installation of the simulator as ``nki``, so that files that contain ``import nki`` run on it unmodified."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType

from .terms.dtypes import register_packed_types


def _place_of(package: str, part: str) -> str:
    """Return the path of an installed package; empty if the package is missing or lacks the module ``part``.

    A stub on the public index has a package's name but not the module.
    """
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return ""
    has_part = PathFinder.find_spec(f"{package}.{part}", spec.submodule_search_locations) is not None
    return str(spec.origin or spec.submodule_search_locations[0]) if has_part else ""


def _modules() -> dict[str, ModuleType]:
    # Imported here and not at the top, because the package itself must not need all of these modules.
    from .api import collectives, compiler, isa, language, nki
    from .api import stand_ins as aliases

    documented = {"nki": nki, "nki.isa": isa, "nki.language": language}
    documented |= {"nki.collectives": collectives, "nki.compiler": compiler}
    has_compiler = "neuronxcc" in sys.modules or _place_of("neuronxcc", "nki")
    return documented | aliases.MODULES | ({} if has_compiler else aliases.COMPILER_MODULES)


def _origin(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "made at run time"


def install() -> None:
    """Make ``import nki``, ``import nki.isa`` and so on import the simulator in this process.

    The modules of older releases in :mod:`nkilib.simulator.api.stand_ins` are installed too; the modules of the
    compiler's package (``neuronxcc.nki.typing``) are installed only if that package is missing. A second call changes
    nothing. The packed types are registered with numpy, so that ``array.view(nl.float8_e4m3fn_x4)`` works as with the
    real NKI. ``python -m nkilib.simulator script.py`` calls this function and then runs the script.

    Raises:
        RuntimeError: if the real ``nki`` is installed, or another ``nki`` is already imported: a Neuron machine must
            not simulate unnoticed.
    """
    from .api import stand_ins as aliases

    modules = _modules()
    loaded = sys.modules.get("nki")
    if loaded is modules["nki"]:
        return
    if loaded is not None:
        raise RuntimeError(
            f"nkilib.simulator.install: a module nki is imported already ({_origin(loaded)}); call install() before "
            f"the first import of nki"
        )
    place = _place_of("nki", "isa")
    if place:
        raise RuntimeError(
            f"nkilib.simulator.install: the real nki is installed ({place}), and 'import nki' shall mean that one. To "
            f"simulate beside it, set NKILIB_BACKEND=simulator and say 'from nkilib.nki import nki, nisa, nl'"
        )
    sys.modules.update(modules)
    if modules.keys() >= aliases.COMPILER_MODULES.keys():
        sys.meta_path.append(aliases.FirstNki())
    register_packed_types()
