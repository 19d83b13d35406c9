"""The gradients of one launch times what comes from above it: a gradient of the loss that only the device knows.

Each gradient crosses HBM twice and nothing is kept of it, so that the DMA engines set the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS, load_broadcast
from nkilib.nki import nisa, nl

# Bytes of a partition that a piece of a gradient takes, and how many of them take turns: one is loaded, one is
# multiplied, one is stored, and one waits for its store.
_PIECE_BYTES = 32768
_TURNS = 4
_DTYPES = (nl.bfloat16, nl.float32, nl.float16)


@dataclass(frozen=True)
class _Piece:
    """Elements ``first`` to ``first + rows * columns`` of a gradient, in rows of ``columns``."""

    first: int
    rows: int
    columns: int

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """The view [rows, columns]."""
        elements_hbm = flat_hbm.slice(0, self.first, self.first + self.rows * self.columns)
        return elements_hbm.reshape_dim(0, (self.rows, self.columns))


def scale_gradients(
    scale_hbm: nl.NkiTensor,
    grad_input_hbm: nl.NkiTensor,
    grad_weight_hbm: nl.NkiTensor | None = None,
    grad_bias_hbm: nl.NkiTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """``scale * gradient`` of up to three gradients, each rounded once to its dtype.

    In PyTorch: ``tuple((scale * grad.float()).to(grad.dtype) for grad in gradients)``. Launch with
    ``scale_gradients[2](...)`` on two cores.

    Args:
        scale_hbm: [1], float32, in HBM.
        grad_input_hbm, grad_weight_hbm, grad_bias_hbm: bfloat16, float32 or float16, of any shape, in HBM; those of
            ``linear_cross_entropy_forward_backward``, or fewer of them.

    Returns:
        New tensors of the same shapes and dtypes, one for each gradient that is given.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    gradients_hbm = [hbm for hbm in (grad_input_hbm, grad_weight_hbm, grad_bias_hbm) if hbm is not None]
    _validate(scale_hbm, gradients_hbm)
    results_hbm = [nl.ndarray(tuple(hbm.shape), dtype=hbm.dtype, buffer=nl.shared_hbm) for hbm in gradients_hbm]
    scale_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    load_broadcast(scale_sbuf, scale_hbm)
    for gradient_hbm, result_hbm in zip(gradients_hbm, results_hbm, strict=True):
        _scale(result_hbm, gradient_hbm, scale_sbuf)
    return tuple(results_hbm)


def _validate(scale_hbm: nl.NkiTensor, gradients_hbm: list[nl.NkiTensor]) -> None:
    require(
        tuple(scale_hbm.shape) == (1,) and scale_hbm.dtype == nl.float32,
        f"scale_gradients: scale_hbm must be float32 of shape (1,), got {scale_hbm.dtype} {scale_hbm.shape}; "
        f"reshape and cast the gradient of the loss",
    )
    for gradient_hbm in gradients_hbm:
        require(
            gradient_hbm.dtype in _DTYPES,
            f"scale_gradients: gradients must be bfloat16, float32 or float16, got {gradient_hbm.dtype}; cast them",
        )


def _scale(result_hbm: nl.NkiTensor, gradient_hbm: nl.NkiTensor, scale_sbuf: nl.NkiTensor) -> None:
    """The pieces of this core, which takes every other one."""
    size = gradient_hbm.size
    flat_hbm, flat_result_hbm = gradient_hbm.reshape((size,)), result_hbm.reshape((size,))
    cores = nl.num_programs()
    columns = min(_PIECE_BYTES // dtype_bytes(gradient_hbm.dtype), div_ceil(size, cores * PARTITIONS))
    pieces = _pieces(size, columns)[nl.program_id(0) :: cores]
    tiles = [
        nl.ndarray((PARTITIONS, columns), dtype=gradient_hbm.dtype, buffer=nl.sbuf)
        for _ in range(min(_TURNS, len(pieces)))
    ]
    for number, piece in enumerate(pieces):
        piece_sbuf = tiles[number % _TURNS][0 : piece.rows, 0 : piece.columns]
        nisa.dma_copy(dst=piece_sbuf, src=piece.of(flat_hbm))
        nisa.tensor_scalar(dst=piece_sbuf, data=piece_sbuf, op0=nl.multiply, operand0=scale_sbuf[0 : piece.rows, :])
        nisa.dma_copy(dst=piece.of(flat_result_hbm), src=piece_sbuf)


def _pieces(size: int, columns: int) -> list[_Piece]:
    """All elements: whole tiles of 128 rows, then whole rows, then what is less than a row."""
    found: list[_Piece] = []
    first = 0
    while first < size:
        rows = min(PARTITIONS, (size - first) // columns)
        found.append(_Piece(first, rows, columns) if rows > 0 else _Piece(first, 1, size - first))
        first += found[-1].rows * found[-1].columns
    return found
