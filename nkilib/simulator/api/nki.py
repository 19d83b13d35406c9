"""Stands for the module ``nki``."""

from __future__ import annotations

from ..dtypes import DType
from ..launch import Kernel, jit, simulate
from . import isa, language

__all__ = ["DType", "Kernel", "isa", "jit", "language", "simulate"]
