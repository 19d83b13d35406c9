"""Tensors of one shape and any layout, seen around an axis."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.nki import nl


@dataclass(frozen=True)
class Matrices:
    """Views of one part of several tensors, of one shape."""

    tensors: tuple[nl.NkiTensor, ...]
