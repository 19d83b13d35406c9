"""The forward's arithmetic on items [columns, elements]: a column is what a partition has.

For segment k of a column let m_k be its maximum, clamped to finite numbers, and s_k the sum of exp(x - m_k). With m the
maximum of the m_k and d = sum of s_k exp(m_k - m),

    log-softmax = (x - m) - log d        softmax = exp(x - m_k) * (exp(m_k - m) / d),

all float32, rounded once to the type of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import FLOAT32_HIGHEST
from nkilib.experimental.softmax.column_geometry import Item, Window
from nkilib.experimental.softmax.column_steps import Group
from nkilib.experimental.softmax.kind import Kind
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class WindowStatistics:
    """Of the columns of a window, float32.

    Attributes:
        neg_max_sbuf, sums_sbuf: -m_k and s_k, [columns, turns, segments].
        row_neg_max_sbuf, row_sum_sbuf: -m, and d or log d, [columns, turns].
        factors_sbuf: exp(m_k - m) / d, as the first two; softmax alone.
    """

    neg_max_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    row_sum_sbuf: nl.NkiTensor
    factors_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, turns: int, segments: int) -> WindowStatistics:
        """For so many turns. Partitions without a column hold what does no harm."""
        partitions = nl.tile_size.pmax
        shape = (partitions, turns, segments)
        neg_max_sbuf, sums_sbuf, factors_sbuf = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)]
        nisa.memset(dst=neg_max_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        nisa.memset(dst=sums_sbuf, value=1.0, engine=nisa.engine.gpsimd)
        rows = [nl.ndarray((partitions, turns), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]
        return cls(neg_max_sbuf, sums_sbuf, rows[0], rows[1], factors_sbuf)


@dataclass
class ForwardArithmetic:
    """Both passes of the forward.

    Attributes:
        kind: which function.
        segments: of a column.
        kept: exponentials of softmax that wait for the second pass, taken in turn; empty if that makes them anew.
        scratch_sbuf: takes exponentials of which only the sum counts, or which the second pass makes anew.
        ceiling_sbuf: the highest finite number, [columns, 1].
        windows: statistics of those in flight.
        taken: of ``kept``, by the first pass and the second.
    """

    kind: Kind
    segments: int
    kept: list[nl.NkiTensor]
    scratch_sbuf: list[nl.NkiTensor]
    ceiling_sbuf: nl.NkiTensor
    windows: dict[int, WindowStatistics]
    taken: list[int]

    @classmethod
    def make(cls, kind: Kind, segments: int, longest: int, kept: int) -> ForwardArithmetic:
        """For segments of at most ``longest`` elements, ``kept`` of which can wait."""
        shape = (nl.tile_size.pmax, longest)
        scratch_type = nl.bfloat16 if kind is Kind.LOG_SOFTMAX else nl.float32
        waiting = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(kept)]
        scratch = [
            nl.ndarray(shape, dtype=scratch_type, buffer=nl.sbuf)
            for _ in range(3 if kind is Kind.SOFTMAX and not kept else 1)
        ]
        ceiling_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ceiling_sbuf, value=FLOAT32_HIGHEST)
        return cls(kind, segments, waiting, scratch, ceiling_sbuf, {}, [0, 0])

    def gather(self, item: Item, views: list[nl.NkiTensor]) -> None:
        """-m_k and s_k of an item."""
        of_window = self._of_window(item.window)
        columns, size = item.turn.columns, item.segment.size
        turn, number = item.turn.number, item.segment.number
        neg_max_sbuf = of_window.neg_max_sbuf[0:columns, turn, number : number + 1]
        nisa.tensor_reduce(dst=neg_max_sbuf, op=nl.maximum, data=views[0], axis=1, negate=True)
        # Of elements that are all -inf: exp(-inf + highest) is 0, exp(-inf + inf) would be NaN.
        nisa.tensor_tensor(
            dst=neg_max_sbuf,
            data1=neg_max_sbuf,
            data2=self.ceiling_sbuf[0:columns],
            op=nl.minimum,
            engine=nisa.engine.gpsimd,
        )
        exponentials_sbuf = self._next_kept(0) if self.kept else self.scratch_sbuf[0]
        nisa.activation(
            dst=exponentials_sbuf[0:columns, 0:size],
            op=nl.exp,
            data=views[0],
            bias=neg_max_sbuf,
            reduce_op=nl.add,
            reduce_res=of_window.sums_sbuf[0:columns, turn, number : number + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def combine(self, group: Group) -> None:
        """-m, and log d or the factors, of all turns of a group."""
        of_window = self._of_window(group.window)
        turns = slice(group.first, group.end)
        neg_max_sbuf = of_window.neg_max_sbuf[0 : group.rows, turns]
        sums_sbuf = of_window.sums_sbuf[0 : group.rows, turns]
        factors_sbuf = of_window.factors_sbuf[0 : group.rows, turns]
        row_neg_max_sbuf = of_window.row_neg_max_sbuf[0 : group.rows, turns]
        row_sum_sbuf = of_window.row_sum_sbuf[0 : group.rows, turns]
        if self.segments > 1:
            nisa.tensor_reduce(dst=row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
            nisa.tensor_tensor(
                dst=factors_sbuf,
                data1=row_neg_max_sbuf.expand_dim(2).broadcast(2, self.segments),
                data2=neg_max_sbuf,
                op=nl.subtract,
            )
            nisa.activation(dst=factors_sbuf, op=nl.exp, data=factors_sbuf)
            nisa.tensor_tensor(dst=sums_sbuf, data1=sums_sbuf, data2=factors_sbuf, op=nl.multiply)
            nisa.tensor_reduce(dst=row_sum_sbuf, op=nl.add, data=sums_sbuf, axis=2)
        else:
            nisa.tensor_copy(dst=row_neg_max_sbuf, src=neg_max_sbuf[:, :, 0])
            nisa.tensor_copy(dst=row_sum_sbuf, src=sums_sbuf[:, :, 0])
        if self.kind is Kind.LOG_SOFTMAX:
            nisa.activation(dst=row_sum_sbuf, op=nl.log, data=row_sum_sbuf)
            return
        nisa.reciprocal(dst=row_sum_sbuf, data=row_sum_sbuf)
        if self.segments > 1:
            inverses = row_sum_sbuf.expand_dim(2).broadcast(2, self.segments)
            nisa.tensor_tensor(dst=factors_sbuf, data1=factors_sbuf, data2=inverses, op=nl.multiply)
        else:
            nisa.tensor_copy(dst=factors_sbuf[:, :, 0], src=row_sum_sbuf)

    def result(self, item: Item, views: list[nl.NkiTensor], dst_sbuf: nl.NkiTensor) -> None:
        """The result of an item; it may be written over the item."""
        of_window = self._of_window(item.window)
        columns, size = item.turn.columns, item.segment.size
        turn, number = item.turn.number, item.segment.number
        if self.kind is Kind.LOG_SOFTMAX:
            nisa.tensor_scalar(
                dst=dst_sbuf,
                data=views[0],
                op0=nl.add,
                operand0=of_window.row_neg_max_sbuf[0:columns, turn : turn + 1],
                op1=nl.subtract,
                operand1=of_window.row_sum_sbuf[0:columns, turn : turn + 1],
            )
        else:
            exponentials_sbuf = self._exponentials(item, views, of_window)
            factor_sbuf = of_window.factors_sbuf[0:columns, turn, number : number + 1]
            nisa.activation(dst=dst_sbuf, op=nl.copy, data=exponentials_sbuf, scale=factor_sbuf)
        if item.ends_part and number == self.segments - 1:
            self.windows.pop(item.window.number)

    def _exponentials(self, item: Item, views: list[nl.NkiTensor], of_window: WindowStatistics) -> nl.NkiTensor:
        """exp(x - m_k), kept or made anew."""
        columns, number = item.turn.columns, item.segment.number
        if self.kept:
            return self._next_kept(1)[0:columns, 0 : item.segment.size]
        self.taken[1] += 1
        exponentials_sbuf = self.scratch_sbuf[1 + self.taken[1] % (len(self.scratch_sbuf) - 1)]
        exponentials_sbuf = exponentials_sbuf[0:columns, 0 : item.segment.size]
        nisa.activation(
            dst=exponentials_sbuf,
            op=nl.exp,
            data=views[0],
            bias=of_window.neg_max_sbuf[0:columns, item.turn.number, number : number + 1],
        )
        return exponentials_sbuf

    def _next_kept(self, visit: int) -> nl.NkiTensor:
        self.taken[visit] += 1
        return self.kept[self.taken[visit] % len(self.kept)]

    def _of_window(self, window: Window) -> WindowStatistics:
        if window.number not in self.windows:
            self.windows[window.number] = WindowStatistics.make(len(window.turns()), self.segments)
        return self.windows[window.number]
