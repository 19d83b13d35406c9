"""How messages speak of a tensor."""

from __future__ import annotations

from .dtypes import DType
from .memory import MemoryRegion


def describe(name: str, shape: tuple[int, ...], dtype: DType, region: MemoryRegion) -> str:
    """One line: name, where it has one, shape, type and place."""
    label = f"{name!r} " if name else ""
    return f"tensor {label}{list(shape)} {dtype} in {region}"
