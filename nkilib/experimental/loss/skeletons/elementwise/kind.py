# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a loss of elements is to the skeleton: three functions of tiles.

The skeleton streams the tensors of a loss, all of one shape and each of its own type, through SBUF, tile by tile, and
cuts each tile into pieces; a weight may also be one of rows or of columns (:mod:`.stream`). For a piece a kind gives
the losses, and their derivatives by each of the tensors. Streams, sums, upstream gradients, weights and stores are the
skeleton's (:mod:`.passes`, :mod:`.weighted`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nkilib.core.rows.arithmetic import product
from nkilib.core.rows.checks import require
from nkilib.core.rows.scratch import Scratch
from nkilib.nki import nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# Names of tensors that most kinds have.
INPUT, TARGET, WEIGHT = "input", "target", "weight"
POSITIVE_WEIGHT, VARIANCE = "pos_weight", "var"
# Tiles that :meth:`Kind.prepare` has begun: their number and meaning are the kind's.
Prepared = tuple[nl.NkiTensor, ...]


@dataclass
class Count:
    """A number that grows."""

    number: int = 0


@dataclass(frozen=True)
class Piece:
    """Some columns of a tile, of every tensor that is streamed.

    Attributes:
        tensors: tiles [rows, columns] in the types of the tensors, by name.
        scratch: for float32 tiles of its size.
        number: among all pieces of the launch, whatever the number of cores.
        taken: how many of them it has.
    """

    tensors: dict[str, nl.NkiTensor]
    scratch: Scratch
    number: int = 0
    taken: Count = field(default_factory=Count)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = next(iter(self.tensors.values())).shape
        return rows, columns

    def __getitem__(self, name: str) -> nl.NkiTensor:
        """The tile of a tensor."""
        return self.tensors[name]

    def float32(self) -> nl.NkiTensor:
        """A float32 tile, not written yet. A kind says how many it takes; one more would be that of another piece."""
        self.taken.number += 1
        most = self.scratch.tiles_of_piece
        require(
            self.taken.number <= most,
            f"a piece takes at most the {most} tiles that its kind states as scratch_tiles, got one more; state them",
        )
        return self.scratch.next(*self.shape)

    def bfloat16(self) -> nl.NkiTensor:
        """A bfloat16 tile in the place of a float32 one: Vector has fast modes for 16 bits."""
        return self.float32().view(nl.bfloat16)[:, 0 : self.shape[1]]

    def like(self, name: str) -> nl.NkiTensor:
        """A tile in the type of a tensor, in which Vector may be faster, in the place of a float32 one."""
        return self.float32().view(self.tensors[name].dtype)[:, 0 : self.shape[1]]

    def constant(self, number: float) -> nl.NkiTensor:
        """A float32 tile [rows, 1] of a number, as an activation takes its bias."""
        return self.scratch.constant(number, self.shape[0])


@dataclass(frozen=True)
class Derivative:
    """Of the losses of a piece by one of its tensors: ``factor`` times a tile, or times the product of two.

    Attributes:
        tile_sbuf: [rows, columns], of any floating type; float32 scratch of its own where it is multiplied.
        factor: a number, which joins the upstream gradient.
        on_scalar: an upstream gradient of all losses is multiplied on Scalar, where Vector has more to do.
        times_sbuf: the other tile of the product, which Vector computes after it has begun the next piece, so that
            it does not wait for other engines.
    """

    tile_sbuf: nl.NkiTensor
    factor: float = 1.0
    on_scalar: bool = False
    times_sbuf: nl.NkiTensor | None = None

    def product_sbuf(self) -> nl.NkiTensor:
        """The tile, multiplied by the other one where there is one: once, and over itself."""
        if self.times_sbuf is not None:
            product(self.tile_sbuf, self.tile_sbuf, self.times_sbuf)
        return self.tile_sbuf


@dataclass(frozen=True)
class Activation:
    """``op(data * scale + bias)`` on Scalar, of a tile.

    Attributes:
        op, data_sbuf, scale, bias_sbuf: of the instruction.
        scratch_sbuf: float32, where it may be written; None: over the data.
    """

    op: Operator
    data_sbuf: nl.NkiTensor
    scale: float = 1.0
    scratch_sbuf: nl.NkiTensor | None = None
    bias_sbuf: nl.NkiTensor | None = None

    @property
    def dst_sbuf(self) -> nl.NkiTensor:
        """Where it may be written."""
        return self.data_sbuf if self.scratch_sbuf is None else self.scratch_sbuf


@dataclass(frozen=True)
class Combination:
    """``(data op0 operand0) op1 operand1`` on Vector, of two tiles.

    Attributes:
        data_sbuf, op0, operand0, op1: of the instruction.
        operand1: float32, which it may be written over.
    """

    data_sbuf: nl.NkiTensor
    op0: Operator
    operand0: float
    op1: Operator
    operand1: nl.NkiTensor


class Losses(Protocol):
    """Where the losses of a piece go: into a tile that is stored, or into sums (:mod:`.results`).

    A kind gives the last instruction of its losses to it, which then writes what is wanted.
    """

    @property
    def are_kept(self) -> bool:
        """They are stored, and so their terms need places; those of a sum are discarded."""

    def activation(
        self, op: Operator, data_sbuf: nl.NkiTensor, scale: float = 1.0, bias_sbuf: nl.NkiTensor | None = None
    ) -> None:
        """``op(data * scale + bias)``, on Scalar."""

    def activations(self, *each: Activation) -> None:
        """Their sum, and each may be written where it says: Vector adds losses that are kept, Scalar those of a sum."""

    def activation_and_combination(self, activation: Activation, combination: Combination) -> None:
        """Their sum, and each may be written where it says: Scalar and Vector each add up their own."""

    def two_combinations(self, first: Combination, second: Combination) -> None:
        """The same of two, both on Vector."""

    def scalar_tensor_tensor(
        self, data_sbuf: nl.NkiTensor, op0: Operator, operand0: float, op1: Operator, operand1: nl.NkiTensor
    ) -> None:
        """``(data op0 operand0) op1 operand1``, on Vector."""

    def product(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        """``left * right`` of two tiles, on Vector."""


class Kind(Protocol):
    """A loss of elements, with its options.

    :meth:`prepare` of the next piece is issued before :meth:`value` of this one: what comes first in a piece, such as
    Scalar's activation functions, belongs there, so that Vector does not wait for it.
    """

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that losses are computed from, the first one first."""

    @property
    def scratch_tiles(self) -> int:
        """Float32 tiles that a piece takes at most, to :meth:`value` or for :meth:`derivative`."""

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the tensors that derivatives by the ``wanted`` tensors are computed from."""

    def prepare(self, piece: Piece) -> Prepared:
        """What :meth:`value` begins with."""

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """The losses of the piece, handed to ``losses`` by one of its methods."""

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Of the losses, by the tensors of these names."""
