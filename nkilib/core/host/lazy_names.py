# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Lazy loading of the names of a package of kernels: a module is loaded when one of its names is first used.

Type checkers do not see such names: the package imports them under ``TYPE_CHECKING`` as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any, Final

from nkilib.base.missing_names import missing_name

_DIRECTIONS: Final = re.compile("(_forward|_backward|_mixture)+$")


def lazy_names(
    package: str, names: Sequence[str], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package whose names are loaded lazily.

    If a name is a plain function that has a kernel (:func:`nkilib.core.host.launchable.launched`), the package has the
    kernel under that name.

    Args:
        package: ``__name__`` of the package.
        names: its ``__all__``.
        modules: the module of each name, relative to the package. The kernels of a loss share one entry, under their
            name without ``_forward``, ``_backward`` and ``_mixture``.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise missing_name(package, name, names)
        loss = _DIRECTIONS.sub("", name)
        value = getattr(import_module(f"{package}.{modules[loss]}"), name)
        if name != loss and isinstance(value, FunctionType):
            from nkilib.core.host.launchable import launched  # not above: it loads NKI

            value = launched(value)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *names})
