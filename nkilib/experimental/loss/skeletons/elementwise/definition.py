# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface of an elementwise loss definition: functions of tiles.

The skeleton streams the tensors of a loss, all of one shape and each of its own type, through SBUF, tile by tile, and
cuts each tile into *pieces*, which are processed one after the other; a weight may also have one value per row or per
column (:mod:`.stream`). For a piece a loss definition computes the losses, and their derivatives with respect to each
of the tensors. The skeleton handles streams, upstream gradients (:mod:`.run`), sums, stores and the product with a
weight (:mod:`.results`).

:class:`LossDefinition` is the interface. It gets a :class:`Piece`, passes losses to :class:`Losses` (as an
:class:`Activation`, a :class:`Combination` or a product) and returns each :class:`Derivative`. :data:`INPUT`,
:data:`TARGET`, :data:`WEIGHT`, :data:`POSITIVE_WEIGHT` and :data:`VARIANCE` are names of tensors; :data:`Prepared` is
the tiles that :meth:`LossDefinition.prepare` returns.
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
    """The elements of all streamed tensors in a range of columns of a tile.

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
        """Return a tile like :meth:`float32`, but in bfloat16: Vector has fast modes for 16 bits."""
        return self.float32().view(nl.bfloat16)[:, 0 : self.shape[1]]

    def like(self, name: str) -> nl.NkiTensor:
        """Return a tile like :meth:`float32`, but in the type of the tensor ``name``."""
        return self.float32().view(self.tensors[name].dtype)[:, 0 : self.shape[1]]

    def constant(self, number: float) -> nl.NkiTensor:
        """Return a float32 tile [rows, 1] filled with ``number``, for use as the bias of an activation."""
        return self.scratch.constant(number, self.shape[0])


@dataclass(frozen=True)
class Derivative:
    """The derivative of a piece's losses with respect to a tensor: ``factor`` times a tile, or times a product of two
    tiles.

    Attributes:
        tile_sbuf: the tile, [rows, columns], of any floating type; with ``times_sbuf``, a float32 scratch tile that
            nothing else uses, because the product overwrites it.
        factor: a number that is multiplied into the upstream gradient.
        on_scalar: whether Scalar instead of Vector multiplies by an upstream gradient that all losses share; True if
            Vector has more work than Scalar.
        times_sbuf: the tile that multiplies ``tile_sbuf``, or None. Vector computes the product after the next piece
            has begun, so that Vector does not wait for other engines.
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
        op, data_sbuf, scale, bias_sbuf: the operands of the instruction.
        scratch_sbuf: a float32 tile that the result may overwrite; None means the data tile.
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
    """The operands of an instruction ``(data op0 operand0) op1 operand1`` on Vector, where data and operand1 are
    tiles.

    Attributes:
        data_sbuf, op0, operand0, op1: the operands of the instruction.
        operand1: a float32 tile that the result may overwrite.
    """

    data_sbuf: nl.NkiTensor
    op0: Operator
    operand0: float
    op1: Operator
    operand1: nl.NkiTensor


class Losses(Protocol):
    """The destination of the losses of a piece: a tile that will be stored, or sums of losses (:mod:`.results`).

    A loss definition passes the operands of its last instruction to one method, which issues the instruction so that it
    writes the losses or sums them up.
    """

    @property
    def are_kept(self) -> bool:
        """Whether the losses are stored, so that each of their terms needs a tile; else they are summed."""

    def activation(
        self, op: Operator, data_sbuf: nl.NkiTensor, scale: float = 1.0, bias_sbuf: nl.NkiTensor | None = None
    ) -> None:
        """Compute the losses as ``op(data * scale + bias)`` on Scalar."""

    def activations(self, *activations: Activation) -> None:
        """Compute the losses as the sum of the results of activations.

        Each result may be written to the activation's ``dst_sbuf``. If losses are stored, Vector adds the results; if
        they are summed, Scalar's accumulator does.
        """

    def activation_and_combination(self, activation: Activation, combination: Combination) -> None:
        """Compute the losses as the sum of the results of an activation and a combination.

        The results may be written to ``activation.dst_sbuf`` and ``combination.operand1``. If losses are summed, Scalar
        and Vector each add up their own term.
        """

    def two_combinations(self, first: Combination, second: Combination) -> None:
        """Compute the losses as the sum of the results of two combinations, both on Vector."""

    def scalar_tensor_tensor(
        self, data_sbuf: nl.NkiTensor, op0: Operator, operand0: float, op1: Operator, operand1: nl.NkiTensor
    ) -> None:
        """Compute the losses as ``(data op0 operand0) op1 operand1`` on Vector."""

    def product(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        """Compute the losses as ``left * right`` of two tiles, on Vector."""


class LossDefinition(Protocol):
    """The definition of an elementwise loss, with its options.

    :meth:`prepare` of the next piece is issued before :meth:`value` of this piece. The first steps of a piece, such as
    Scalar's activation functions, belong in :meth:`prepare`, so that Vector does not wait for them.
    """

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors of the loss, in the order of the kernel's arguments."""

    @property
    def scratch_tiles(self) -> int:
        """The maximum number of float32 tiles that a piece takes, in :meth:`prepare` and :meth:`value` or in
        :meth:`derivative`.
        """

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that the derivatives with respect to the ``wanted`` tensors need."""

    def prepare(self, piece: Piece) -> Prepared:
        """Issue the first steps of a piece, and return their tiles, which are passed to :meth:`value`."""

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses of a piece: pass the operands of the last instruction to one method of ``losses``."""

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives of the losses with respect to the ``wanted`` tensors, by name."""
