# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface of an elementwise loss definition: functions of tiles.

The skeleton loads the tensors of a loss tile by tile, and cuts each tile into *pieces*, which are processed one after
the other (:mod:`.stream`). All tensors have one shape; only a weight may instead have one value per row or per column.
A :class:`LossDefinition` computes the losses of a :class:`Piece`, and the :class:`Derivative` of the losses with
respect to each tensor. The skeleton does the rest: it multiplies by upstream gradients (:mod:`.run`) and by a weight,
and stores or sums the losses (:mod:`.results`).

A loss definition passes the operands of its last instruction to :class:`Losses`, which stores or sums the results.
:data:`INPUT`, :data:`TARGET`, :data:`WEIGHT`, :data:`POSITIVE_WEIGHT` and :data:`VARIANCE` are names of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nkilib.core.arithmetic import product
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import Scratch
from nkilib.nki import nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# Names of tensors that most losses have.
INPUT, TARGET, WEIGHT = "input", "target", "weight"
POSITIVE_WEIGHT, VARIANCE = "pos_weight", "var"
# The tiles of :meth:`LossDefinition.prepare`: each loss definition chooses their number and meaning.
Prepared = tuple[nl.NkiTensor, ...]


@dataclass
class Count:
    """A mutable counter, for use in frozen objects."""

    number: int = 0


@dataclass(frozen=True)
class Piece:
    """A piece: the elements of all loaded tensors in a range of columns of a tile.

    Attributes:
        tensors: the elements of each tensor, [rows, columns] in the type of the tensor, by the name of the tensor.
        scratch: the source of float32 tiles of the piece's size.
        number: the index of the piece among all pieces of the launch; it does not depend on the number of cores.
        taken: the number of scratch tiles that the piece has taken.
    """

    tensors: dict[str, nl.NkiTensor]
    scratch: Scratch
    number: int = 0
    taken: Count = field(default_factory=Count)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape as (rows, columns)."""
        rows, columns = next(iter(self.tensors.values())).shape
        return rows, columns

    def __getitem__(self, name: str) -> nl.NkiTensor:
        """Return the piece's elements of the tensor ``name``, [rows, columns]."""
        return self.tensors[name]

    def float32(self) -> nl.NkiTensor:
        """Return an uninitialised float32 tile of the piece's size.

        A piece may take as many tiles as :attr:`LossDefinition.scratch_tiles` says; AssertionError is raised beyond
        that.
        """
        self.taken.number += 1
        most = self.scratch.tiles_of_piece
        require(
            self.taken.number <= most,
            f"a piece takes at most the {most} tiles that its loss definition states as scratch_tiles, got one "
            f"more; state them",
        )
        return self.scratch.next(*self.shape)

    def bfloat16(self) -> nl.NkiTensor:
        """Take a tile like :meth:`float32`, but return it as bfloat16; Vector has fast modes for 16 bits."""
        return self.float32().view(nl.bfloat16)[:, 0 : self.shape[1]]

    def like(self, name: str) -> nl.NkiTensor:
        """Take a tile like :meth:`float32`, but return it in the type of the tensor ``name``."""
        return self.float32().view(self.tensors[name].dtype)[:, 0 : self.shape[1]]

    def constant(self, number: float) -> nl.NkiTensor:
        """Return a float32 tile [rows, 1] filled with ``number``, for use as the bias of an activation."""
        return self.scratch.constant(number, self.shape[0])


@dataclass(frozen=True)
class Derivative:
    """The derivative of a piece's losses with respect to a tensor: ``factor * tile_sbuf [* times_sbuf]``.

    Attributes:
        tile_sbuf: a tile [rows, columns] of any floating type; with ``times_sbuf``, a float32 scratch tile that the
            product overwrites.
        factor: a number.
        on_scalar: whether Scalar, instead of Vector, multiplies by an upstream gradient that all losses share; for loss
            definitions that give Vector more work than Scalar.
        times_sbuf: a tile [rows, columns], or None. Vector computes the product after the next piece has begun, so that
            Vector does not wait for other engines.
    """

    tile_sbuf: nl.NkiTensor
    factor: float = 1.0
    on_scalar: bool = False
    times_sbuf: nl.NkiTensor | None = None

    def product_sbuf(self) -> nl.NkiTensor:
        """Return ``tile_sbuf``, multiplied in place by ``times_sbuf`` if there is one; call this method only once."""
        if self.times_sbuf is not None:
            product(self.tile_sbuf, self.tile_sbuf, self.times_sbuf)
        return self.tile_sbuf


@dataclass(frozen=True)
class Activation:
    """The operands of an instruction ``op(data * scale + bias)`` on Scalar, where data is a tile.

    Attributes:
        op: the activation function.
        data_sbuf: the data, [rows, columns].
        scale: the factor of the data.
        bias_sbuf: the bias, float32 [rows, 1]; None for 0.
        scratch_sbuf: a float32 tile that the result may overwrite; None if it may overwrite ``data_sbuf``.
    """

    op: Operator
    data_sbuf: nl.NkiTensor
    scale: float = 1.0
    scratch_sbuf: nl.NkiTensor | None = None
    bias_sbuf: nl.NkiTensor | None = None

    @property
    def dst_sbuf(self) -> nl.NkiTensor:
        """The tile that the result may overwrite."""
        return self.data_sbuf if self.scratch_sbuf is None else self.scratch_sbuf


@dataclass(frozen=True)
class Combination:
    """The operands of an instruction ``(data op0 operand0) op1 operand1`` on Vector.

    Attributes:
        data_sbuf: the data, a tile [rows, columns].
        op0, op1: the two operators.
        operand0: a number.
        operand1: a float32 tile [rows, columns] that the result may overwrite.
    """

    data_sbuf: nl.NkiTensor
    op0: Operator
    operand0: float
    op1: Operator
    operand1: nl.NkiTensor


class Losses(Protocol):
    """The destination of the losses of a piece: a tile that will be stored, or sums of losses (:mod:`.results`).

    A loss definition calls exactly one of the methods, with the operands of its last instruction. The method issues the
    instruction, which writes the losses to the tile or adds them to the sums.
    """

    @property
    def are_kept(self) -> bool:
        """Whether the losses are stored; else they are summed."""

    def activation(
        self, op: Operator, data_sbuf: nl.NkiTensor, scale: float = 1.0, bias_sbuf: nl.NkiTensor | None = None
    ) -> None:
        """Compute the losses as ``op(data * scale + bias)`` on Scalar."""

    def activations(self, *activations: Activation) -> None:
        """Compute the losses as the elementwise sum of the results of activations.

        ``dst_sbuf`` of each activation may be overwritten.
        """

    def activation_and_combination(self, activation: Activation, combination: Combination) -> None:
        """Compute the losses as the elementwise sum of the results of an activation and a combination.

        ``activation.dst_sbuf`` and ``combination.operand1`` may be overwritten.
        """

    def two_combinations(self, first: Combination, second: Combination) -> None:
        """Compute the losses as the elementwise sum of the results of two combinations, both on Vector.

        ``operand1`` of each combination may be overwritten.
        """

    def scalar_tensor_tensor(
        self, data_sbuf: nl.NkiTensor, op0: Operator, operand0: float, op1: Operator, operand1: nl.NkiTensor
    ) -> None:
        """Compute the losses as ``(data op0 operand0) op1 operand1`` on Vector."""

    def product(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        """Compute the losses as ``left * right`` of two tiles, on Vector."""


class LossDefinition(Protocol):
    """The definition of an elementwise loss, with its options.

    The skeleton calls :meth:`prepare` of the next piece before :meth:`value` of the current piece. The first steps of a
    piece, such as Scalar's activation functions, belong in :meth:`prepare`, so that Vector does not wait for them.
    """

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors of the loss, in the order of the kernel's arguments."""

    @property
    def scratch_tiles(self) -> int:
        """The maximum number of tiles of :meth:`Piece.float32` that are taken for a piece: by :meth:`prepare` and
        :meth:`value` together, or by :meth:`derivative`, whichever takes more.
        """

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that :meth:`derivative` with these ``wanted`` names reads."""

    def prepare(self, piece: Piece) -> Prepared:
        """Issue the first steps of a piece, and return their results, tiles that :meth:`value` gets."""

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses of a piece: pass the operands of the last instruction to one method of ``losses``."""

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return, by the name of each ``wanted`` tensor, the derivative of the losses with respect to this tensor."""
