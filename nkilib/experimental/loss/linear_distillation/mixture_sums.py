"""The sums of a second visit of the classes, over the blocks of classes and over both cores.

Their shifts are those of whole rows, so sums of blocks of classes are only added up. Those of a window of blocks stand
side by side, and are added at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Step
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear.sizes import WINDOW
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import SUMS
from nkilib.nki import nisa, nl

# What is summed: e_student * log(M / Q), e_teacher * log(M / P), and the exponentials themselves.
STUDENT_LOGS, TEACHER_LOGS, STUDENT_MASS, TEACHER_MASS = range(4)


@dataclass(frozen=True)
class MixtureSums:
    """The sums of a block of positions.

    Attributes:
        columns_sbuf: float32 [128, sums, tiles, 1 + window]: column 0 for what is added up, and a window.
        total_sbuf: float32 [128, sums, tiles].
        others_sbuf: those of the other core, likewise.
    """

    columns_sbuf: nl.NkiTensor
    total_sbuf: nl.NkiTensor
    others_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int) -> MixtureSums:
        """For blocks of at most so many tiles of positions."""
        shape = (PARTITIONS, SUMS, tiles)
        return cls(
            nl.ndarray((*shape, 1 + WINDOW), dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf),
        )

    def clear(self) -> None:
        """Nothing is summed yet."""
        nisa.memset(dst=self.columns_sbuf, value=0.0)

    def place(self, which: int, tile: int, step: Step) -> nl.NkiTensor:
        """Where a sum of a tile of positions and a block of classes goes, [128, 1]."""
        column = _column(step)
        return self.columns_sbuf[:, which, tile, column : column + 1]

    def close(self, step: Step, is_last: bool) -> None:
        """Add up the window, if a block of classes is the last one of it, or of the core."""
        if _column(step) == WINDOW or is_last:
            columns = _column(step) + 1
            nisa.tensor_reduce(dst=self.total_sbuf, op=nl.add, data=self.columns_sbuf[:, :, :, 0:columns], axis=3)
            nisa.tensor_copy(dst=self.columns_sbuf[:, :, :, 0], src=self.total_sbuf)

    def exchanged(self) -> nl.NkiTensor:
        """The sums over the classes of all cores, float32 [128, sums, tiles]."""
        nisa.tensor_copy(dst=self.total_sbuf, src=self.columns_sbuf[:, :, :, 0])
        if nl.num_programs() > 1:
            other = 1 - nl.program_id(0)
            nisa.sendrecv(
                src=self.total_sbuf, dst=self.others_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=1
            )
            nisa.tensor_tensor(dst=self.total_sbuf, data1=self.total_sbuf, data2=self.others_sbuf, op=nl.add)
        return self.total_sbuf


def ends_a_window(step: Step) -> bool:
    """Whether the sums of a window are added up after a block of classes."""
    return _column(step) == WINDOW


def _column(step: Step) -> int:
    return 1 + step.number % WINDOW
