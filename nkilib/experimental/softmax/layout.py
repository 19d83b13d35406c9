"""Tensors of one shape and any layout, seen around an axis.

A tensor is seen as [O, C, I]: C elements along the axis, O before and I after it. Dimensions become one where that
takes no copy: in all tensors, one has as its stride what the next one spans. Where they do not, there are several parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.nki import nl


@dataclass(frozen=True)
class Matrices:
    """Views of one part of several tensors, of one shape."""

    tensors: tuple[nl.NkiTensor, ...]


def around_axis(tensors: tuple[nl.NkiTensor, ...], axis: int) -> list[Matrices]:
    """The parts of tensors [..., C, 1], whose ``axis`` is C, as matrices [O, C]."""
    return [Matrices(tuple(tensor_hbm[:, :, 0] for tensor_hbm in tensors))]
