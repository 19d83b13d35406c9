"""The backward along an axis that is not the last one."""

from __future__ import annotations

from nkilib.experimental.softmax.kind import Kind
from nkilib.experimental.softmax.tiling import SoftmaxTiling
from nkilib.nki import nl


def backward_of_columns(
    grad_hbm: nl.NkiTensor, output_hbm: nl.NkiTensor, grad_x_hbm: nl.NkiTensor, kind: Kind, tiling: SoftmaxTiling
) -> None:
    """Tensors [O, C, I] with I at least 2; not there yet.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"backward_of_columns: axis must be the last one, got {kind.value}")
