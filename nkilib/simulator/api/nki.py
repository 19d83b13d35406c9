"""Stands for the module ``nki``."""

from __future__ import annotations

from ..dtypes import DType
from ..launch import Kernel, jit, simulate
from . import collectives, isa, language

__all__ = ["DType", "Kernel", "collectives", "isa", "jit", "language", "simulate"]
