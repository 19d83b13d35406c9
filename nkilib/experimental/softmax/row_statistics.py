"""Maximum and sum of exponentials of the rows of a batch: of pieces, of partitions, of rows.

For piece k of a row let m_k be the maximum of its elements and s_k the sum of exp(x - m_k). With m = max over k of m_k,

    d = sum over the row of exp(x - m) = sum over k of s_k * exp(m_k - m)

(Milakov and Gimelshein, arXiv 1805.02867, in its parallel form); the same holds of the partitions that a row lies on.
The tiles hold -m_k, which is what the ``bias`` of an activation wants, clamped to the finite range from above: a piece
of -inf alone then gives exp(-inf + highest) = 0, not NaN from inf - inf, and a row of -inf alone d = 0, from which NaN
follows as in PyTorch. A +inf stays: it makes NaN of its row at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.experimental.softmax.kind import Kind
from nkilib.experimental.softmax.row_batches import RowBatch
from nkilib.experimental.softmax.row_plan import Piece, RowPlan
from nkilib.nki import nisa, nl

# Stages of the combination: of pieces; of pieces and of partitions; of nothing.
_OF_ONE_PIECE, _OF_PIECES, _OF_PARTS = 1, 3, 6


def combining_stages(plan: RowPlan) -> int:
    """How many stages it takes until a row's statistics are there."""
    if plan.parts > 1:
        return _OF_PARTS
    return _OF_PIECES if plan.chunks > 1 else _OF_ONE_PIECE


@dataclass
class RowStatistics:
    """Of the rows of a batch, float32.

    Attributes:
        kind: of what the last stage makes.
        batch: its rows.
        neg_max_sbuf, sums_sbuf: -m_k and s_k, [partitions, rows of each, pieces of a row].
        row_neg_max_sbuf: -m, [partitions, rows of each].
        divisor_sbuf: log d, or 1 / d for softmax, likewise.
        line: what stands on a single partition while partitions are combined.
    """

    kind: Kind
    batch: RowBatch
    neg_max_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    divisor_sbuf: nl.NkiTensor
    line: dict[str, nl.NkiTensor] = field(default_factory=dict)

    @classmethod
    def make(cls, kind: Kind, batch: RowBatch) -> RowStatistics:
        """Tiles of a batch, in which nothing stands yet."""
        rows = (batch.partitions, batch.each)
        pieces = (*rows, batch.plan.chunks)
        neg_max_sbuf, sums_sbuf = _float32(pieces), _float32(pieces)
        is_single = batch.plan.chunks == 1
        row_neg_max_sbuf = neg_max_sbuf.reshape(rows) if is_single and batch.plan.parts == 1 else _float32(rows)
        return cls(kind, batch, neg_max_sbuf, sums_sbuf, row_neg_max_sbuf, _float32(rows))

    def neg_max_of(self, piece: Piece) -> nl.NkiTensor:
        """Where -m_k of a piece stand, [partitions, rows, 1]."""
        return self.neg_max_sbuf[:, piece.first : piece.end, piece.column : piece.column + 1]

    def sums_of(self, piece: Piece) -> nl.NkiTensor:
        """Where s_k of a piece stand, [partitions, rows, 1]."""
        return self.sums_sbuf[:, piece.first : piece.end, piece.column : piece.column + 1]

    def combine(self, stage: int) -> None:
        """A stage: each engine finds the results of the others there, if the stages are not issued at once."""
        plan = self.batch.plan
        rows_sbuf = self.sums_sbuf[:, :, 0]
        if plan.parts == 1 and plan.chunks == 1:
            self._divide(rows_sbuf, self.divisor_sbuf)
        elif plan.parts == 1:
            steps = (self._weigh_pieces, self._sum_pieces, lambda: self._divide(self.line["sums"], self.divisor_sbuf))
            steps[stage]()
        else:
            parts = (self._weigh_parts, self._sum_parts, self._spread, self._bring_back)
            (self._weigh_pieces, self._sum_pieces, *parts)[stage]()

    def _divide(self, sums_sbuf: nl.NkiTensor, dst_sbuf: nl.NkiTensor) -> None:
        if self.kind is Kind.LOG_SOFTMAX:
            nisa.activation(dst=dst_sbuf, op=nl.log, data=sums_sbuf)
        else:
            nisa.reciprocal(dst=dst_sbuf, data=sums_sbuf)

    def _weigh_pieces(self) -> None:
        """-m of the partition, and exp(m_k - m) in the place of -m_k."""
        neg_max_sbuf = self.neg_max_sbuf
        nisa.tensor_reduce(dst=self.row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
        every_sbuf = self.row_neg_max_sbuf.expand_dim(2).broadcast(2, neg_max_sbuf.shape[2])
        nisa.tensor_tensor(dst=neg_max_sbuf, data1=every_sbuf, data2=neg_max_sbuf, op=nl.subtract)
        nisa.activation(dst=neg_max_sbuf, op=nl.exp, data=neg_max_sbuf)

    def _sum_pieces(self) -> None:
        """d of the partition; of rows on several partitions, it and -m as lines on one partition."""
        partitions = self.batch.partitions
        self.line["sums"] = _float32((partitions, self.batch.each))
        nisa.tensor_tensor(dst=self.sums_sbuf, data1=self.sums_sbuf, data2=self.neg_max_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.line["sums"], op=nl.add, data=self.sums_sbuf, axis=2)
        if self.batch.plan.parts > 1:
            self.line["neg_max_psum"] = on_line(self.row_neg_max_sbuf)
            self.line["sums_psum"] = on_line(self.line["sums"])

    def _weigh_parts(self) -> None:
        lines, parts = self.batch.lines, self.batch.plan.parts
        neg_max_psum = self.line["neg_max_psum"].reshape((1, lines, parts))
        self.line["neg_max"], self.line["weights"] = _float32((1, lines)), _float32((1, lines, parts))
        nisa.tensor_reduce(dst=self.line["neg_max"], op=nl.minimum, data=neg_max_psum, axis=2)
        every_sbuf = self.line["neg_max"].expand_dim(2).broadcast(2, parts)
        nisa.tensor_tensor(dst=self.line["weights"], data1=every_sbuf, data2=neg_max_psum, op=nl.subtract)
        nisa.activation(dst=self.line["weights"], op=nl.exp, data=self.line["weights"])

    def _sum_parts(self) -> None:
        lines, parts = self.batch.lines, self.batch.plan.parts
        sums_psum = self.line["sums_psum"].reshape((1, lines, parts))
        self.line["divisor"] = _float32((1, lines))
        nisa.tensor_tensor(
            dst=self.line["weights"], data1=self.line["weights"], data2=sums_psum, op=nl.multiply
        )
        nisa.tensor_reduce(dst=self.line["divisor"], op=nl.add, data=self.line["weights"], axis=2)
        self._divide(self.line["divisor"], self.line["divisor"])

    def _spread(self) -> None:
        parts = self.batch.plan.parts
        for name in ("neg_max", "divisor"):
            self.line[f"{name}_back"] = off_line(self.line[name], parts)

    def _bring_back(self) -> None:
        nisa.tensor_copy(dst=self.row_neg_max_sbuf, src=self.line["neg_max_back"])
        nisa.tensor_copy(dst=self.divisor_sbuf, src=self.line["divisor_back"])


def on_line(column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """[partitions, 1] as [1, partitions] in PSUM: what stands on the partitions of a row lies side by side."""
    line_psum = nl.ndarray((1, column_sbuf.shape[0]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=line_psum, data=column_sbuf)
    return line_psum


def off_line(line_sbuf: nl.NkiTensor, parts: int) -> nl.NkiTensor:
    """What stands on a line, [1, rows], on the partitions of the rows, [rows * parts, 1] in PSUM."""
    rows = line_sbuf.shape[1]
    spread_sbuf = _float32((1, rows, parts))
    nisa.tensor_copy(dst=spread_sbuf, src=line_sbuf.expand_dim(2).broadcast(2, parts))
    column_psum = nl.ndarray((rows * parts, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=column_psum, data=spread_sbuf.reshape((1, rows * parts)))
    return column_psum


def _float32(shape: tuple[int, ...]) -> nl.NkiTensor:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
