"""The scores of both models for a block of positions, which a core keeps in HBM between its two visits."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Block, Span
from nkilib.experimental.loss.linear.kept_logits import KeptLogits
from nkilib.experimental.loss.linear_distillation.options import STUDENT, TEACHER
from nkilib.experimental.loss.linear_distillation.visits import ScoreGroup
from nkilib.nki import nl


@dataclass(frozen=True)
class KeptPair:
    """The scratches of one core.

    Two tensors: a store to a class that a loop of the device counts waits for the stores before it to that tensor.

    Attributes:
        student, teacher: scores of each model.
    """

    student: KeptLogits
    teacher: KeptLogits

    @classmethod
    def make(cls, positions: int, share: Span, slot: int) -> KeptPair:
        """For so many positions, whole tiles, and a core's share of the classes; number ``slot`` of its kind."""

        def scratch(name: str) -> KeptLogits:
            shape = (positions, share.size)
            name = f"kept_{name}_scores_{slot}_hbm"
            return KeptLogits(share.first, nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm, name=name))

        return cls(scratch(STUDENT), scratch(TEACHER))

    def store(self, scores: ScoreGroup, classes: Block) -> None:
        """Keep the scores of a group of tiles, those behind the last position too."""
        self.student.store(scores.student_sbuf, scores.start, classes)
        self.teacher.store(scores.teacher_sbuf, scores.start, classes)

    def load(self, student_sbuf: nl.NkiTensor, teacher_sbuf: nl.NkiTensor, tile: int, classes: Block) -> None:
        """Load what is kept of one tile of positions, float32 [128, classes] each."""
        self.student.load(student_sbuf, tile, classes)
        self.teacher.load(teacher_sbuf, tile, classes)
