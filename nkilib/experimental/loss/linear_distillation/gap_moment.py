"""The sum of weighted differences of scores, gathered block by block of classes: the one sum that a divergence needs.

With the teacher's scores t in the unit of the student's, s, the weights e_j = exp(scale * (x_j - m)) of one model, and
for a block k of classes the difference g_k = max t - max s of its maxima,

    W_k = sum of e_j * (t_j - s_j - g_k)

and for a position, whose maxima differ by g, where w_k = exp(scale * (m_k - m)) are the weights of the blocks and S_k
the sums of e_j,

    W = sum of w_k * (W_k + S_k * (g_k - g))

so that equal scores give 0 exactly, and large scores cancel before anything is summed. A masked class has a finite
score far below all others: in the model of the weights it adds 0, in the other one what makes W very large.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.statistics import Columns, Place, Statistics
from nkilib.core.rows.tiles import float32_like
from nkilib.nki import nisa, nl

# W stays finite, so that a weight of 0 gives 0 with it.
_MOST = 2.0**126


@dataclass(frozen=True)
class GapMoment:
    """W of blocks of classes, float32 [128, tiles, columns], and of positions, [128, tiles].

    Attributes:
        columns: how the tiles of blocks are laid out.
        weighted_sbuf: W_k.
        row_weighted_sbuf: W.
        gaps_sbuf, terms_sbuf: to compute in, of the shape of W_k.
    """

    columns: Columns
    weighted_sbuf: nl.NkiTensor
    row_weighted_sbuf: nl.NkiTensor
    gaps_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns, weighted_sbuf: nl.NkiTensor) -> GapMoment:
        """With the tile of W_k, of which the caller has one."""
        return cls(columns, weighted_sbuf, columns.row_tile(), columns.tile(), columns.tile())

    def take_gaps(
        self, student_distances_sbuf: nl.NkiTensor, teacher_distances_sbuf: nl.NkiTensor, ratio: float, chunks: int
    ) -> None:
        """g_k - g, of the distances m_k - m of both models; before these become weights."""
        nisa.scalar_tensor_tensor(
            dst=self.columns.in_use(self.gaps_sbuf, chunks),
            data=teacher_distances_sbuf,
            op0=nl.multiply,
            operand0=ratio,
            op1=nl.subtract,
            operand1=student_distances_sbuf,
        )

    def weight(self, weighting: Statistics, chunks: int) -> None:
        """w_k * W_k, while the weights w_k are there."""
        nisa.tensor_tensor(
            dst=self.columns.in_use(self.terms_sbuf, chunks),
            data1=self.columns.in_use(self.weighted_sbuf, chunks),
            data2=self.columns.in_use(weighting.weights_sbuf, chunks),
            op=nl.multiply,
        )

    def combine(self, weighting: Statistics, chunks: int) -> None:
        """W, once the weights have become w_k * S_k: a block without weight adds 0, whatever its gap is."""
        in_use = self.columns.in_use
        gaps_sbuf, terms_sbuf = in_use(self.gaps_sbuf, chunks), in_use(self.terms_sbuf, chunks)
        weights_sbuf = in_use(weighting.weights_sbuf, chunks)
        nisa.tensor_tensor(dst=gaps_sbuf, data1=gaps_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=gaps_sbuf, op=nl.add)
        sum_sbuf = float32_like(self.row_weighted_sbuf)
        nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=terms_sbuf, axis=2)
        nisa.tensor_scalar(
            dst=self.row_weighted_sbuf, data=sum_sbuf, op0=nl.minimum, operand0=_MOST, op1=nl.maximum, operand1=-_MOST
        )

    def restart(self) -> None:
        """Put what was combined into column 0."""
        self.columns.restart(self.weighted_sbuf, self.row_weighted_sbuf)


@dataclass(frozen=True)
class GapPass:
    """The sum W_k of one tile, once another engine has the differences and the weights.

    Attributes:
        moment: with the sums.
        gap_sbuf: t - s, float32 [128, classes]; it is overwritten.
        center_sbuf: g_k, float32 [128, 1].
        weights_sbuf: e, float32 [128, classes].
        place: of the tile in the statistics.
    """

    moment: GapMoment
    gap_sbuf: nl.NkiTensor
    center_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor
    place: Place

    def take(self) -> None:
        """Issue it."""
        nisa.scalar_tensor_tensor(
            dst=self.gap_sbuf,
            data=self.gap_sbuf,
            op0=nl.subtract,
            operand0=self.center_sbuf,
            op1=nl.multiply,
            operand1=self.weights_sbuf,
            reduce_op=nl.add,
            reduce_res=self.place.of(self.moment.weighted_sbuf),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
