"""What a loss of elements is to the skeleton: a few functions of tiles.

The skeleton streams one to three tensors of one shape, each of its own type, through SBUF, tile by tile, and cuts each
tile into pieces. For a piece a kind gives the losses, and the derivative of the losses by each of the tensors. Streams,
sums, upstream gradients and stores are the skeleton's (:mod:`.forward`, :mod:`.backward`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.nki import nisa, nl

# Columns of a piece: instructions of so many have little overhead, and their float32 tiles are 8 KiB a partition.
PIECE_COLUMNS = 2048
# Elements that an accumulator of an engine adds up before it is read: their order is the engine's.
RUN_COLUMNS = 512


# Tiles that :meth:`Kind.prepare` has begun: their number and meaning are the kind's.
Prepared = tuple[nl.NkiTensor, ...]


@dataclass
class Scratch:
    """Float32 tiles that pieces take in turn.

    Attributes:
        tiles_sbuf: [128, columns of a piece].
        taken: how many were taken so far.
    """

    tiles_sbuf: list[nl.NkiTensor]
    taken: int = 0

    @classmethod
    def make(cls, tiles: int, columns: int) -> Scratch:
        """So many tiles."""
        shape = (nl.tile_size.pmax, columns)
        return cls([nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(tiles)])

    def next(self, rows: int, columns: int) -> nl.NkiTensor:
        """The tile that was taken the longest time ago."""
        tile_sbuf = self.tiles_sbuf[self.taken % len(self.tiles_sbuf)]
        self.taken += 1
        return tile_sbuf[0:rows, 0:columns]


@dataclass(frozen=True)
class Piece:
    """Some columns of a tile, of every tensor that is streamed.

    Attributes:
        tensors: tiles [rows, columns] in the types of the tensors, by the number of the tensor.
        scratch: for float32 tiles of its size.
    """

    tensors: dict[int, nl.NkiTensor]
    scratch: Scratch

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = next(iter(self.tensors.values())).shape
        return rows, columns

    def float32(self) -> nl.NkiTensor:
        """A float32 tile, not written yet. A kind says how many it takes."""
        return self.scratch.next(*self.shape)


@dataclass(frozen=True)
class Derivative:
    """Of the losses of a piece by one of its tensors: ``factor`` times a tile.

    Attributes:
        tile_sbuf: [rows, columns], of any floating type.
        factor: a number, which joins the upstream gradient.
    """

    tile_sbuf: nl.NkiTensor
    factor: float = 1.0


class Kind(Protocol):
    """A loss of elements, with its options.

    :meth:`prepare` of the next piece is issued before :meth:`losses` of this one: what comes first in a piece, such as
    Scalar's activation functions, belongs there, so that Vector does not wait for it.
    """

    @property
    def scratch_tiles(self) -> int:
        """Float32 tiles that a piece takes at most, in :meth:`prepare` and what follows it."""

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of the tensors that derivatives by the ``wanted`` tensors are computed from."""

    def prepare(self, piece: Piece) -> Prepared:
        """What :meth:`losses` and :meth:`sums` begin with."""

    def losses(self, piece: Piece, prepared: Prepared, dst_sbuf: nl.NkiTensor) -> None:
        """The losses, into a tile of any floating type."""

    def sums(self, piece: Piece, prepared: Prepared, sums_sbuf: nl.NkiTensor) -> None:
        """The float32 sums of the losses of each run of the piece, into a column each, on whichever engine has time."""

    def derivative(self, piece: Piece, tensor: int) -> Derivative:
        """Of the losses by a tensor."""


def difference(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """left - right. ``scalar_tensor_tensor`` takes two tiles of SBUF at twice the rate of ``tensor_tensor``.

    Not as a product with the identity on Tensor: an infinite number in one partition would be NaN in all others.
    """
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=left_sbuf, op0=nl.add, operand0=0.0, op1=nl.subtract, operand1=right_sbuf
    )


def product(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """left * right, likewise."""
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=left_sbuf, op0=nl.multiply, operand0=1.0, op1=nl.multiply, operand1=right_sbuf
    )


def runs(tile_sbuf: nl.NkiTensor) -> list[tuple[int, int]]:
    """First column and end of each run of a piece, of which a tile has the size."""
    columns = tile_sbuf.shape[1]
    return [(start, min(start + RUN_COLUMNS, columns)) for start in range(0, columns, RUN_COLUMNS)]


def sum_runs(values_sbuf: nl.NkiTensor, sums_sbuf: nl.NkiTensor) -> None:
    """The float32 sums of runs of a tile, one a column of ``sums_sbuf``; on Scalar, beside Vector."""
    for number, (start, end) in enumerate(runs(values_sbuf)):
        run_sbuf = values_sbuf[:, start:end]
        nisa.activation(
            dst=run_sbuf,
            op=nl.copy,
            data=run_sbuf,
            reduce_op=nl.add,
            reduce_res=sums_sbuf[:, number : number + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
