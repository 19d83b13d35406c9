# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacement of the module ``nki``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..launch.kernel import Kernel, jit, simulate
from ..terms.dtypes import DType
from . import collectives, compiler, isa, language
from .stand_ins import alias, offer

__all__ = ["DType", "Kernel", "collectives", "compiler", "isa", "jit", "language", "simulate"]

offer("nki", __all__, globals())
offer("nki.collectives", collectives.__all__, vars(collectives))

if not TYPE_CHECKING:  # a type checker would take every name for a known one

    def __getattr__(name: str) -> Any:
        """Return the object that older kernels use as ``nki.<name>``, or raise an error; see ``stand_ins.py``."""
        return alias("nki", name)
