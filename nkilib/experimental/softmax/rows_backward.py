"""The backward along the last axis."""

from __future__ import annotations

from nkilib.experimental.softmax.kind import Kind
from nkilib.experimental.softmax.tiling import SoftmaxTiling
from nkilib.nki import nl


def backward_of_rows(
    grad_hbm: nl.NkiTensor, output_hbm: nl.NkiTensor, grad_x_hbm: nl.NkiTensor, kind: Kind, tiling: SoftmaxTiling
) -> None:
    """Tensors [O, C, 1]; not there yet.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"backward_of_rows: {kind.value}")
