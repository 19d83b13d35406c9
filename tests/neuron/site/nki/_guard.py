# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refuses imports of the simulator: on a Neuron machine a kernel has no use for it. This package itself may."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from importlib.util import resolve_name
from typing import Any, Final

_SIMULATOR: Final = "nkilib.simulator"
_import = builtins.__import__


def _is_simulator(module: str) -> bool:
    return module == _SIMULATOR or module.startswith(f"{_SIMULATOR}.")


def _guarded(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    scope = globals or {}
    importer = str(scope.get("__name__", ""))
    if not _is_simulator(importer) and importer.partition(".")[0] != "nki":
        module = resolve_name("." * level + name, scope["__package__"]) if level else name
        for imported in (module, *(f"{module}.{part}" for part in fromlist or ())):
            if _is_simulator(imported):
                raise ImportError(f"{importer} imports {imported}: kernels run on the real NKI here")
    return _import(name, globals, locals, fromlist or (), level)


def refuse_the_simulator() -> None:
    """Refuse imports of the simulator in this process from now on."""
    builtins.__import__ = _guarded
