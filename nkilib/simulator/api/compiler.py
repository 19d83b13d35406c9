# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacement of the module ``nki.compiler``."""

from __future__ import annotations

from ..terms.compilation import AddressRotation, CompileConfig, SpecializationConfig

__all__ = ["AddressRotation", "CompileConfig", "SpecializationConfig"]
