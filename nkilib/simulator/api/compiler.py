# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacement of the module ``nki.compiler``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..terms.compilation import AddressRotation, CompileConfig, SpecializationConfig
from .stand_ins import alias, offer

__all__ = ["AddressRotation", "CompileConfig", "SpecializationConfig"]

offer("nki.compiler", __all__, globals())

if not TYPE_CHECKING:  # a type checker would take every name for a known one

    def __getattr__(name: str) -> Any:
        """Return the object that older kernels use as ``nki.compiler.<name>``, or raise an error; see
        ``stand_ins.py``.
        """
        return alias("nki.compiler", name)
