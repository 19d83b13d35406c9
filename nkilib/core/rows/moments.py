"""Sums over a row beside that of the exponentials, gathered chunk by chunk as the statistics are.

With factors f_j a chunk k of maximum m_k gives

    F_k = sum of f_j                       G_k = sum of f_j * (z_j - m_k)
    E_k = sum of exp(z_j - m_k) * (z_j - m_k)

and the row, where s_k are the sums of exponentials and m is its maximum,

    F = sum of F_k                         G = sum of G_k + F_k * (m_k - m)
    E = sum of exp(m_k - m) * (E_k + s_k * (m_k - m))

so that sum f_j * (lse - z_j) = F * log d - G and the entropy is log d - E / d: differences from the maximum, in which
large elements cancel exactly, not afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.statistics import Columns, Place, Statistics
from nkilib.core.rows.tiles import FLOAT32_LOWEST, sum_in_place
from nkilib.nki import nisa, nl

# exp of it is 0 in float32: what lies so far below the maximum adds nothing, -inf * 0 included.
NEGLIGIBLE = -200.0


@dataclass(frozen=True)
class FirstMoment:
    """F and G of a group of batches: of chunks, [rows, batches, columns], and of rows, [rows, batches]."""

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
        """F_k and G_k of one chunk.

        Args:
            scores_sbuf: z, [rows, columns].
            factors_sbuf: f, [rows, columns], or None for 1; may be overwritten.
            products_sbuf: float32 [rows, columns], overwritten.
            neg_max_sbuf: -m_k, [rows, 1].
            place: of the chunk.
        """
        count_sbuf, first_sbuf = place.of(self.factors_sbuf), place.of(self.first_sbuf)
        if factors_sbuf is None:
            nisa.memset(dst=count_sbuf, value=float(scores_sbuf.shape[1]))
            nisa.tensor_scalar_reduce(
                dst=products_sbuf,
                data=scores_sbuf,
                op0=nl.add,
                operand0=neg_max_sbuf,
                reduce_op=nl.add,
                reduce_res=first_sbuf,
            )
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

    def combine(self, columns: Columns, distances_sbuf: nl.NkiTensor, terms_sbuf: nl.NkiTensor, chunks: int) -> None:
        """F and G of the rows; ``terms`` is overwritten."""
        factors_sbuf, first_sbuf = columns.in_use(self.factors_sbuf, chunks), columns.in_use(self.first_sbuf, chunks)
        nisa.tensor_tensor(dst=terms_sbuf, data1=factors_sbuf, data2=distances_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=first_sbuf, op=nl.add)
        nisa.tensor_reduce(dst=self.row_first_sbuf, op=nl.add, data=terms_sbuf, axis=2)
        nisa.tensor_reduce(dst=self.row_factors_sbuf, op=nl.add, data=factors_sbuf, axis=2)


@dataclass(frozen=True)
class EntropyMoment:
    """E of a group of batches: of chunks, [rows, batches, columns], and of rows, [rows, batches]."""

    entropy_sbuf: nl.NkiTensor
    row_entropy_sbuf: nl.NkiTensor

    def take(self, exponentials_sbuf: nl.NkiTensor, distances_sbuf: nl.NkiTensor, place: Place) -> None:
        """E_k of one chunk from its exponentials and z - m_k, which is overwritten."""
        nisa.tensor_tensor(dst=distances_sbuf, data1=distances_sbuf, data2=exponentials_sbuf, op=nl.multiply)
        sum_in_place(distances_sbuf, place.of(self.entropy_sbuf))

    def combine(
        self, statistics: Statistics, distances_sbuf: nl.NkiTensor, terms_sbuf: nl.NkiTensor, chunks: int
    ) -> None:
        """E of the rows; ``terms`` is overwritten."""
        columns = statistics.columns
        nisa.scalar_tensor_tensor(
            dst=terms_sbuf,
            data=distances_sbuf,
            op0=nl.maximum,
            operand0=NEGLIGIBLE,
            op1=nl.multiply,
            operand1=columns.in_use(statistics.sums_sbuf, chunks),
        )
        of_chunks_sbuf = columns.in_use(self.entropy_sbuf, chunks)
        weights_sbuf = columns.in_use(statistics.weights_sbuf, chunks)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=of_chunks_sbuf, op=nl.add)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.row_entropy_sbuf, op=nl.add, data=terms_sbuf, axis=2)

    def entropies(self, statistics: Statistics) -> nl.NkiTensor:
        """log d - E / d of the rows: neither term is negative after the sign, so nothing cancels."""
        entropies_sbuf = statistics.columns.row_tile()
        nisa.reciprocal(dst=entropies_sbuf, data=statistics.row_sum_sbuf)
        nisa.tensor_tensor(dst=entropies_sbuf, data1=entropies_sbuf, data2=self.row_entropy_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=entropies_sbuf, data1=statistics.log_sum_sbuf, data2=entropies_sbuf, op=nl.subtract)
        return entropies_sbuf


def distances_from_maximum(dst_sbuf: nl.NkiTensor, scores_sbuf: nl.NkiTensor, neg_max_sbuf: nl.NkiTensor) -> None:
    """z - m_k of one chunk, float32; to be taken before the exponentials, which may be written over z."""
    nisa.tensor_scalar(
        dst=dst_sbuf, data=scores_sbuf, op0=nl.add, operand0=neg_max_sbuf, op1=nl.maximum, operand1=NEGLIGIBLE
    )


@dataclass(frozen=True)
class Moments:
    """What a group of batches gathers beside its statistics; None for what nobody asks for.

    Attributes:
        columns: how the tiles of chunks are laid out.
        first: F and G.
        entropy: E.
        distances_sbuf: m_k - m, finite, [rows, batches, columns].
        terms_sbuf: to compute in, of the same shape.
    """

    columns: Columns
    first: FirstMoment | None
    entropy: EntropyMoment | None
    distances_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns, with_first: bool, with_entropy: bool) -> Moments | None:
        """Their tiles; None if there is nothing to gather."""
        if not (with_first or with_entropy):
            return None
        first = entropy = None
        if with_first:
            first = FirstMoment(columns.tile(), columns.tile(), columns.row_tile(), columns.row_tile())
        if with_entropy:
            entropy = EntropyMoment(columns.tile(), columns.row_tile())
        return cls(columns, first, entropy, columns.tile(), columns.tile())

    def keep_distances(self, distances_sbuf: nl.NkiTensor, chunks: int) -> None:
        """Keep m_k - m, which the weights take the place of, finite."""
        kept_sbuf = self.columns.in_use(self.distances_sbuf, chunks)
        nisa.tensor_scalar(dst=kept_sbuf, data=distances_sbuf, op0=nl.maximum, operand0=FLOAT32_LOWEST)

    def combine(self, statistics: Statistics, chunks: int) -> None:
        """F, G and E of the rows, while the weights are there: before ``Statistics.combine_sums``."""
        distances_sbuf = self.columns.in_use(self.distances_sbuf, chunks)
        terms_sbuf = self.columns.in_use(self.terms_sbuf, chunks)
        if self.first is not None:
            self.first.combine(self.columns, distances_sbuf, terms_sbuf, chunks)
        if self.entropy is not None:
            self.entropy.combine(statistics, distances_sbuf, terms_sbuf, chunks)

    def restart(self) -> None:
        """Put F, G and E of the chunks so far into column 0."""
        if self.first is not None:
            self.columns.restart(self.first.factors_sbuf, self.first.row_factors_sbuf)
            self.columns.restart(self.first.first_sbuf, self.first.row_first_sbuf)
        if self.entropy is not None:
            self.columns.restart(self.entropy.entropy_sbuf, self.entropy.row_entropy_sbuf)
