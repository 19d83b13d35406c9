# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums over a row besides the sum of exponentials, from which entropies and other scores of the row are computed.

The sums are computed chunk by chunk, like the statistics (:mod:`.statistics`): :class:`FirstMoment`,
:class:`EntropyMoment`, :class:`SquareMoment` and :class:`MeanMoment`; :class:`ShiftedEntropy` uses shifts in place of
maxima. :class:`Moments` holds the sums that the options of a launch need. :class:`PieceTerms` computes two sums over a
chunk in one pass, piece by piece (:mod:`nkilib.core.psum`).

With elements z_j of a row and factors f_j, a chunk k of maximum m_k gives

    F_k = sum of f_j                       G_k = sum of f_j * (z_j - m_k)
    E_k = sum of exp(z_j - m_k) * (z_j - m_k)

and the row, where s_k are the sums of exponentials and m is its maximum,

    F = sum of F_k                         G = sum of G_k + F_k * (m_k - m)
    E = sum of exp(m_k - m) * (E_k + s_k * (m_k - m))

so that, with d the sum of exp(z_j - m) and lse = m + log d, sum f_j * (lse - z_j) = F * log d - G and the entropy is
log d - E / d. Both use differences from the maximum, in which large elements cancel exactly and early.

Under a scale, z = scale * x: exponentials are of z, but the differences in G and E are of x, and ``scale`` multiplies
the results that are computed from G and E.

An element of -inf has exp = 0 and should add nothing to E, but 0 * inf is NaN. So elements far below the maximum are
raised, before their exponentials are computed, to a number at which exp is still 0 in float32
(:func:`raise_negligible`). float16 may have no such number. There only -inf is raised, after its exponential is
computed (:func:`raise_infinite`).

Arguments: ``place`` is the place of a chunk's numbers in *tiles of chunks*, [rows, batches, columns], which
:mod:`.statistics` defines. ``chunks`` is the number of chunks of a row that are combined. *Distances* are m_k - m and
*weights* exp(m_k - m), both in tiles of chunks. ``restart`` writes the combined value of earlier chunks to column 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.psum import PsumPiece
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.shifted import ShiftedSums
from nkilib.core.rows.statistics import Columns, Place, Statistics
from nkilib.core.rows.tiles import FLOAT32_LOWEST, float32_like, selected, sum_in_place
from nkilib.nki import nisa, nl

# exp of it is 0 in float32: an element so far below the maximum adds nothing.
NEGLIGIBLE = -200.0
# Elements with z below min(1.5 * m, -450) are raised to it: at least 150 below any m, and never as far as -inf is,
# though rounded to bfloat16, while m is above -2.2e38.
_RAISED_TIMES, _RAISED_MOST = 1.5, -450.0
# It stays finite in bfloat16, whatever the scale is.
_RAISED_LEAST = -2.2e38
FLOAT16_LOWEST = -65504.0


def raise_negligible(
    chunk_sbuf: nl.NkiTensor, neg_max_sbuf: nl.NkiTensor, scale: float, is_shared: bool = False
) -> None:
    """Raise elements x of a chunk with exp(scale * (x - m)) = 0, in place, so that none is -inf.

    A chunk that is all -inf stays as it is. So does a chunk of float16, for which there is :func:`raise_infinite`.

    Args:
        chunk_sbuf: x, [rows, columns].
        neg_max_sbuf: -m, minus the maximum or minus any number that is not far below it, float32 [rows, 1].
        scale: the scale, a positive number; if rows have scales of their own, a lower bound of them.
        is_shared: whether GpSimd processes half of the elements and Vector the other half. This pays where Vector has
            another chunk to work on meanwhile.
    """
    if chunk_sbuf.dtype != nl.float16:
        raise_to(chunk_sbuf, lowest_relevant(neg_max_sbuf, scale), is_shared)


def lowest_relevant(neg_max_sbuf: nl.NkiTensor, scale: float) -> nl.NkiTensor:
    """Return the number to which :func:`raise_negligible` raises smaller elements, shaped like -m."""
    lowest_sbuf = float32_like(neg_max_sbuf)
    nisa.tensor_scalar(
        dst=lowest_sbuf,
        data=neg_max_sbuf,
        op0=nl.multiply,
        operand0=-_RAISED_TIMES,
        op1=nl.minimum,
        operand1=max(_RAISED_MOST / scale, _RAISED_LEAST),
    )
    return lowest_sbuf


def raise_to(chunk_sbuf: nl.NkiTensor, lowest_sbuf: nl.NkiTensor, is_shared: bool = False) -> None:
    """Raise elements of a chunk, [rows, columns], in place, to at least the number of their row in ``lowest_sbuf``,
    [rows, 1].

    ``is_shared`` is explained at :func:`raise_negligible`.
    """
    columns = chunk_sbuf.shape[1]
    half = columns // 2 if is_shared else 0
    if half > 0:
        second_sbuf = chunk_sbuf[:, columns - half : columns]
        nisa.tensor_tensor(
            dst=second_sbuf,
            data1=second_sbuf,
            data2=lowest_sbuf.broadcast(1, half),
            op=nl.maximum,
            engine=nisa.engine.gpsimd,
        )
    first_sbuf = chunk_sbuf[:, 0 : columns - half]
    nisa.tensor_scalar(dst=first_sbuf, data=first_sbuf, op0=nl.maximum, operand0=lowest_sbuf)


def raise_infinite(elements_sbuf: nl.NkiTensor) -> None:
    """Raise each -inf to the lowest number of float16, in place, after the exponentials are computed.

    Tiles of other types are left unchanged, because :func:`raise_negligible` has removed their -inf.
    """
    if elements_sbuf.dtype == nl.float16:
        nisa.tensor_scalar(dst=elements_sbuf, data=elements_sbuf, op0=nl.maximum, operand0=FLOAT16_LOWEST)


@dataclass(frozen=True)
class FirstMoment:
    """F and G of the module, for a group of batches.

    Attributes:
        factors_sbuf, first_sbuf: F_k and G_k of chunks, [rows, batches, columns].
        row_factors_sbuf, row_first_sbuf: F and G of rows, [rows, batches].
    """

    factors_sbuf: nl.NkiTensor
    first_sbuf: nl.NkiTensor
    row_factors_sbuf: nl.NkiTensor
    row_first_sbuf: nl.NkiTensor

    def take(
        self,
        scores_sbuf: nl.NkiTensor,
        factors_sbuf: nl.NkiTensor | None,
        products_sbuf: nl.NkiTensor,
        neg_max_sbuf: nl.NkiTensor,
        place: Place,
    ) -> None:
        """Compute F_k and G_k (see the module) of one chunk.

        Args:
            scores_sbuf: z, [rows, columns].
            factors_sbuf: f, [rows, columns], or None for 1; may be overwritten.
            products_sbuf: scratch, float32 [rows, columns]; it is overwritten.
            neg_max_sbuf: -m_k, [rows, 1].
            place: the place of the chunk.
        """
        count_sbuf, first_sbuf = place.of(self.factors_sbuf), place.of(self.first_sbuf)
        if factors_sbuf is None:
            nisa.memset(dst=count_sbuf, value=float(scores_sbuf.shape[1]))
            self.take_products(scores_sbuf, None, products_sbuf, neg_max_sbuf, place)
            return
        nisa.scalar_tensor_tensor(
            dst=products_sbuf,
            data=scores_sbuf,
            op0=nl.add,
            operand0=neg_max_sbuf,
            op1=nl.multiply,
            operand1=factors_sbuf,
        )
        sum_in_place(factors_sbuf, count_sbuf)
        sum_in_place(products_sbuf, first_sbuf)

    def take_products(
        self,
        scores_sbuf: nl.NkiTensor,
        factors_sbuf: nl.NkiTensor | None,
        products_sbuf: nl.NkiTensor,
        neg_max_sbuf: nl.NkiTensor,
        place: Place,
    ) -> None:
        """Compute G_k of one chunk in one pass, for a caller that computes F_k itself. The arguments are those of
        :meth:`take`.
        """
        if factors_sbuf is None:
            nisa.tensor_scalar_reduce(
                dst=products_sbuf,
                data=scores_sbuf,
                op0=nl.add,
                operand0=neg_max_sbuf,
                reduce_op=nl.add,
                reduce_res=place.of(self.first_sbuf),
            )
            return
        nisa.scalar_tensor_tensor(
            dst=products_sbuf,
            data=scores_sbuf,
            op0=nl.add,
            operand0=neg_max_sbuf,
            op1=nl.multiply,
            operand1=factors_sbuf,
            reduce_op=nl.add,
            reduce_res=place.of(self.first_sbuf),
        )

    def combine(self, columns: Columns, distances_sbuf: nl.NkiTensor, terms_sbuf: nl.NkiTensor, chunks: int) -> None:
        """Compute F and G (see the module) of the rows from the distances m_k - m; ``terms_sbuf`` is scratch."""
        factors_sbuf, first_sbuf = columns.in_use(self.factors_sbuf, chunks), columns.in_use(self.first_sbuf, chunks)
        nisa.tensor_tensor(dst=terms_sbuf, data1=factors_sbuf, data2=distances_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=first_sbuf, op=nl.add)
        nisa.tensor_reduce(dst=self.row_first_sbuf, op=nl.add, data=terms_sbuf, axis=2)
        nisa.tensor_reduce(dst=self.row_factors_sbuf, op=nl.add, data=factors_sbuf, axis=2)


@dataclass(frozen=True)
class PieceTerms:
    """The operands of :meth:`sum`: bias and -center, float32 [rows, 1], and the scale, a number or float32 [rows,
    1].
    """

    bias_sbuf: nl.NkiTensor
    neg_center_sbuf: nl.NkiTensor
    scale: float | nl.NkiTensor

    def sum(
        self, chunk_sbuf: nl.NkiTensor, pieces: list[PsumPiece], sum_sbuf: nl.NkiTensor, entropy_sbuf: nl.NkiTensor
    ) -> None:
        """Compute two sums over a chunk x: of e = exp(scale * x + bias), and of e * (x - center).

        Scalar and Vector add up the sums of the pieces in registers.

        Args:
            chunk_sbuf: x, [rows, columns].
            pieces: the pieces of the chunk.
            sum_sbuf, entropy_sbuf: tiles [rows, 1] for the first and the second sum.
        """
        for piece in pieces:
            elements_sbuf = piece.of(chunk_sbuf)
            command = nisa.reduce_cmd.reset_reduce if piece.is_first else nisa.reduce_cmd.reduce
            nisa.activation(
                dst=piece.tile_psum,
                op=nl.exp,
                data=elements_sbuf,
                bias=self.bias_sbuf,
                scale=self.scale,
                reduce_op=nl.add,
                reduce_res=sum_sbuf if piece.is_last else None,
                reduce_cmd=command,
            )
            raise_infinite(elements_sbuf)
            nisa.scalar_tensor_tensor(
                dst=piece.tile_psum,
                data=elements_sbuf,
                op0=nl.add,
                operand0=self.neg_center_sbuf,
                op1=nl.multiply,
                operand1=piece.tile_psum,
                reduce_op=nl.add,
                reduce_res=entropy_sbuf if piece.is_last else None,
                reduce_cmd=command,
            )


def _entropies(sums: Statistics | ShiftedSums, row_entropy_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the entropies log d - scale * E / d (see the module), [rows, batches]."""
    entropies_sbuf = sums.columns.row_tile()
    nisa.reciprocal(dst=entropies_sbuf, data=sums.row_sum_sbuf)
    sums.scale.take_product(entropies_sbuf, entropies_sbuf, row_entropy_sbuf)
    nisa.tensor_tensor(dst=entropies_sbuf, data1=sums.log_sum_sbuf, data2=entropies_sbuf, op=nl.subtract)
    return entropies_sbuf


@dataclass(frozen=True)
class EntropyMoment:
    """E_k of chunks, [rows, batches, columns], and E of rows, [rows, batches] (see the module)."""

    entropy_sbuf: nl.NkiTensor
    row_entropy_sbuf: nl.NkiTensor

    def take(self, statistics: Statistics, chunk_sbuf: nl.NkiTensor, pieces: list[PsumPiece], place: Place) -> None:
        """Compute E_k and s_k of one chunk. Its maximum must be in the statistics, and no element may be -inf (see
        :func:`raise_negligible`).
        """
        scale = statistics.scale.of(place.batch)
        terms = PieceTerms(place.of(statistics.bias_sbuf), place.of(statistics.neg_max_sbuf), scale)
        terms.sum(chunk_sbuf, pieces, place.of(statistics.sums_sbuf), place.of(self.entropy_sbuf))

    def take_terms(
        self,
        statistics: Statistics,
        chunk_sbuf: nl.NkiTensor,
        exponentials_sbuf: nl.NkiTensor,
        terms_sbuf: nl.NkiTensor,
        place: Place,
    ) -> None:
        """Compute E_k (see the module) of one chunk from its exponentials, in one pass.

        Args:
            statistics: the statistics, with the maximum of the chunk.
            chunk_sbuf: x, [rows, columns], without -inf: see :func:`raise_negligible`.
            exponentials_sbuf: exp(scale * (x - m_k)), float32 of the same shape.
            terms_sbuf: scratch of any float type and the same shape; it is overwritten.
            place: the place of the chunk in the group.
        """
        nisa.scalar_tensor_tensor(
            dst=terms_sbuf,
            data=chunk_sbuf,
            op0=nl.add,
            operand0=place.of(statistics.neg_max_sbuf),
            op1=nl.multiply,
            operand1=exponentials_sbuf,
            reduce_op=nl.add,
            reduce_res=place.of(self.entropy_sbuf),
        )

    def combine(
        self, statistics: Statistics, distances_sbuf: nl.NkiTensor, terms_sbuf: nl.NkiTensor, chunks: int
    ) -> None:
        """Compute E (see the module) of the rows from the distances m_k - m; ``terms_sbuf`` is scratch."""
        columns = statistics.columns
        nisa.scalar_tensor_tensor(
            dst=terms_sbuf,
            data=distances_sbuf,
            op0=nl.maximum,
            operand0=NEGLIGIBLE / statistics.scale.least,
            op1=nl.multiply,
            operand1=columns.in_use(statistics.sums_sbuf, chunks),
        )
        of_chunks_sbuf = self._of_chunks(statistics, chunks)
        weights_sbuf = columns.in_use(statistics.weights_sbuf, chunks)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=of_chunks_sbuf, op=nl.add)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.row_entropy_sbuf, op=nl.add, data=terms_sbuf, axis=2)

    def _of_chunks(self, statistics: Statistics, chunks: int) -> nl.NkiTensor:
        sums_sbuf = statistics.columns.in_use(statistics.sums_sbuf, chunks)
        has_elements_sbuf = nl.ndarray(sums_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=has_elements_sbuf, data=sums_sbuf, op0=nl.not_equal, operand0=0.0)
        return selected(statistics.columns.in_use(self.entropy_sbuf, chunks), has_elements_sbuf)

    def entropies(self, statistics: Statistics) -> nl.NkiTensor:
        """Return the entropies of the rows, log d - scale * E / d (see the module), [rows, batches].

        E is never positive, so nothing cancels.
        """
        return _entropies(statistics, self.row_entropy_sbuf)


@dataclass(frozen=True)
class ShiftedEntropy:
    """E of a group of batches under shifts: like :class:`EntropyMoment`, with the shift of a row in place of every m_k.

    The sums of the chunks of a row are added without weights. Elements above the shift make E and log S larger (S is
    the sum of exponentials, see :mod:`.shifted`). These excesses cancel in the entropy: if S is at most 2^11, the
    entropy is off by at most 8 units in the last place of 8, that is 2^-17.
    """

    entropy_sbuf: nl.NkiTensor
    row_entropy_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns) -> ShiftedEntropy:
        """Allocate the sums, without writing them."""
        return cls(columns.tile(), columns.row_tile())

    def take(self, sums: ShiftedSums, chunk_sbuf: nl.NkiTensor, pieces: list[PsumPiece], place: Place) -> None:
        """Compute the sums of e = exp(scale * (x - c)) and of e * (x - c) of one chunk, with c the shift of the row.

        No element of the chunk may be -inf; see :func:`raise_negligible`.
        """
        terms = PieceTerms(sums.bias_of(place.batch), sums.shift_of(place.batch), sums.scale.of(place.batch))
        terms.sum(chunk_sbuf, pieces, place.of(sums.sums_sbuf), place.of(self.entropy_sbuf))

    def combine(self, columns: Columns, chunks: int) -> None:
        """Compute E (see the module) of the rows from ``chunks`` chunks."""
        nisa.tensor_reduce(dst=self.row_entropy_sbuf, op=nl.add, data=columns.in_use(self.entropy_sbuf, chunks), axis=2)

    def restart(self, columns: Columns, chunks: int) -> None:
        """Combine E of ``chunks`` chunks of each row, which fill the columns, into column 0."""
        self.combine(columns, chunks)
        columns.restart(self.entropy_sbuf, self.row_entropy_sbuf)

    def entropies(self, sums: ShiftedSums) -> nl.NkiTensor:
        """Return the entropies of the rows, [rows, batches]."""
        return _entropies(sums, self.row_entropy_sbuf)


@dataclass(frozen=True)
class SquareMoment:
    """The sum of squared exponentials of each row of a group of batches, for log sum p_j^2.

    With the chunks of the module,

        Q_k = sum of exp(2 (z_j - m_k))        Q = sum of exp(2 (m_k - m)) * Q_k
        log sum p_j^2 = log Q - 2 log d

    where p_j = exp(z_j - m) / d. Q and d are at least 1, so neither log loses precision.

    Attributes:
        squares_sbuf: Q_k of chunks, [rows, batches, columns].
        row_squares_sbuf: Q of rows, [rows, batches].
    """

    squares_sbuf: nl.NkiTensor
    row_squares_sbuf: nl.NkiTensor

    def take(self, exponentials_sbuf: nl.NkiTensor, scratch_sbuf: nl.NkiTensor, place: Place) -> None:
        """Compute Q_k (see :class:`SquareMoment`) of one chunk.

        Args:
            exponentials_sbuf: exp(z - m_k), float32 [rows, columns].
            scratch_sbuf: scratch of any float type and the same shape; it is overwritten.
            place: the place of the chunk in the group.
        """
        nisa.activation(
            dst=scratch_sbuf,
            op=nl.square,
            data=exponentials_sbuf,
            reduce_op=nl.add,
            reduce_res=place.of(self.squares_sbuf),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def combine(self, statistics: Statistics, terms_sbuf: nl.NkiTensor, chunks: int) -> None:
        """Compute Q (see :class:`SquareMoment`) of the rows, before the weights are overwritten; ``terms_sbuf`` is
        scratch.
        """
        columns = statistics.columns
        weights_sbuf = columns.in_use(statistics.weights_sbuf, chunks)
        squares_sbuf = columns.in_use(self.squares_sbuf, chunks)
        nisa.tensor_tensor(dst=terms_sbuf, data1=squares_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.row_squares_sbuf, op=nl.add, data=terms_sbuf, axis=2)

    def logs(self, statistics: Statistics) -> nl.NkiTensor:
        """Return log sum p^2 = log Q - 2 log d (see :class:`SquareMoment`), [rows, batches]."""
        logs_sbuf = float32_like(self.row_squares_sbuf)
        nisa.activation(dst=logs_sbuf, op=nl.log, data=self.row_squares_sbuf)
        nisa.scalar_tensor_tensor(
            dst=logs_sbuf,
            data=statistics.log_sum_sbuf,
            op0=nl.multiply,
            operand0=-2.0,
            op1=nl.add,
            operand1=logs_sbuf,
        )
        return logs_sbuf


@dataclass(frozen=True)
class MeanMoment:
    """The sum and the number of the elements x of each row of a group of batches.

    The mean of the elements needs no maximum. Where elements may be masked by -inf, the unmasked elements are counted
    too.

    Attributes:
        columns: the layout of the tiles of chunks.
        num_columns: the number of elements of a row.
        sums_sbuf, row_sums_sbuf: the sums of chunks, [rows, batches, columns], and of rows, [rows, batches].
        counts_sbuf, row_counts_sbuf: the numbers of unmasked elements of chunks and of rows; None if no element can be
            masked.
    """

    columns: Columns
    num_columns: int
    sums_sbuf: nl.NkiTensor
    row_sums_sbuf: nl.NkiTensor
    counts_sbuf: nl.NkiTensor | None = None
    row_counts_sbuf: nl.NkiTensor | None = None

    def take(
        self, elements_sbuf: nl.NkiTensor, unmasked_sbuf: nl.NkiTensor | None, scratch_sbuf: nl.NkiTensor, place: Place
    ) -> None:
        """Compute the sum of the elements of one chunk: on Vector if elements may be masked, else on Scalar.

        Args:
            elements_sbuf: x, [rows, columns].
            unmasked_sbuf: 0.0 where an element is -inf, else 1.0, float32 [rows, columns]; None if no element can be
                masked.
            scratch_sbuf: scratch of any float type and the same shape; it is overwritten.
            place: the place of the chunk.
        """
        if unmasked_sbuf is None:
            nisa.activation(
                dst=scratch_sbuf,
                op=nl.copy,
                data=elements_sbuf,
                reduce_op=nl.add,
                reduce_res=place.of(self.sums_sbuf),
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )
            return
        nisa.scalar_tensor_tensor(
            dst=scratch_sbuf,
            data=elements_sbuf,
            op0=nl.maximum,
            operand0=FLOAT32_LOWEST,
            op1=nl.multiply,
            operand1=unmasked_sbuf,
            reduce_op=nl.add,
            reduce_res=place.of(self.sums_sbuf),
        )

    def combine(self, chunks: int) -> None:
        """Compute the sums and counts of the rows from ``chunks`` chunks."""
        for of_chunks_sbuf, of_rows_sbuf in self._pairs():
            in_use_sbuf = self.columns.in_use(of_chunks_sbuf, chunks)
            nisa.tensor_reduce(dst=of_rows_sbuf, op=nl.add, data=in_use_sbuf, axis=2)

    def restart(self) -> None:
        """Copy the sums and counts of the rows, which :meth:`combine` has computed, to column 0."""
        for of_chunks_sbuf, of_rows_sbuf in self._pairs():
            self.columns.restart(of_chunks_sbuf, of_rows_sbuf)

    def means(self, scale: Scale) -> nl.NkiTensor:
        """Return ``scale`` times the mean of each row, [rows, batches]; NaN for a row whose elements are all masked."""
        if self.row_counts_sbuf is None:
            return scale.times(self.row_sums_sbuf, divisor=self.num_columns)
        means_sbuf = float32_like(self.row_sums_sbuf)
        nisa.reciprocal(dst=means_sbuf, data=self.row_counts_sbuf)
        scale.take_product(means_sbuf, means_sbuf, self.row_sums_sbuf)
        return means_sbuf

    @property
    def of_chunks(self) -> list[nl.NkiTensor]:
        """The tiles of chunks: the sums, and the counts if elements may be masked."""
        return [of_chunks_sbuf for of_chunks_sbuf, _ in self._pairs()]

    def _pairs(self) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
        pairs = [(self.sums_sbuf, self.row_sums_sbuf)]
        if self.counts_sbuf is not None and self.row_counts_sbuf is not None:
            pairs.append((self.counts_sbuf, self.row_counts_sbuf))
        return pairs


@dataclass(frozen=True)
class Moments:
    """The sums that a group of batches gathers besides its statistics; None for sums that no option needs.

    Attributes:
        columns: the layout of the tiles of chunks.
        first: F and G of the module.
        entropy: E of the module.
        distances_sbuf: the distances m_k - m, finite, [rows, batches, columns].
        terms_sbuf: scratch of the same shape.
        squares: the sums of squared exponentials.
        mean: the sums of the elements.
    """

    columns: Columns
    first: FirstMoment | None
    entropy: EntropyMoment | None
    distances_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor
    squares: SquareMoment | None = None
    mean: MeanMoment | None = None

    @classmethod
    def make(cls, columns: Columns, with_first: bool, with_entropy: bool) -> Moments | None:
        """Allocate the tiles of the wanted sums, and return them; None if neither is wanted.

        Args:
            columns: the layout of the tiles of chunks.
            with_first: whether F and G are wanted.
            with_entropy: whether E is wanted.
        """
        if not (with_first or with_entropy):
            return None
        first = entropy = None
        if with_first:
            first = FirstMoment(columns.tile(), columns.tile(), columns.row_tile(), columns.row_tile())
        if with_entropy:
            entropy = EntropyMoment(columns.tile(), columns.row_tile())
        return cls(columns, first, entropy, columns.tile(), columns.tile())

    def keep_distances(self, distances_sbuf: nl.NkiTensor, chunks: int) -> None:
        """Keep a finite copy of the distances m_k - m (see the module), because the weights overwrite them."""
        kept_sbuf = self.columns.in_use(self.distances_sbuf, chunks)
        nisa.tensor_scalar(dst=kept_sbuf, data=distances_sbuf, op0=nl.maximum, operand0=FLOAT32_LOWEST)

    def combine(self, statistics: Statistics, chunks: int) -> None:
        """Compute the sums of each row from ``chunks`` chunks. Call it before ``Statistics.combine_sums``, which
        overwrites the weights.
        """
        distances_sbuf = self.columns.in_use(self.distances_sbuf, chunks)
        terms_sbuf = self.columns.in_use(self.terms_sbuf, chunks)
        if self.first is not None:
            self.first.combine(self.columns, distances_sbuf, terms_sbuf, chunks)
        if self.entropy is not None:
            self.entropy.combine(statistics, distances_sbuf, terms_sbuf, chunks)
        if self.squares is not None:
            self.squares.combine(statistics, terms_sbuf, chunks)
        if self.mean is not None:
            self.mean.combine(chunks)

    def restart(self) -> None:
        """Copy the sums of each row, which :meth:`combine` has computed, to column 0."""
        if self.first is not None:
            self.columns.restart(self.first.factors_sbuf, self.first.row_factors_sbuf)
            self.columns.restart(self.first.first_sbuf, self.first.row_first_sbuf)
        if self.entropy is not None:
            self.columns.restart(self.entropy.entropy_sbuf, self.entropy.row_entropy_sbuf)
        if self.squares is not None:
            self.columns.restart(self.squares.squares_sbuf, self.squares.row_squares_sbuf)
        if self.mean is not None:
            self.mean.restart()
