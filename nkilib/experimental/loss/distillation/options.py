"""What a launch of the kernels works on, and what can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nkilib.core.plan_limits import limited_batches
from nkilib.core.rows.batches import Batch, batches_of_core
from nkilib.core.rows.recomputation import BATCHES_MAX
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.distillation.host.tiling import DistillationTiling
from nkilib.nki import nl

# Positions that are worked on at a time, one a partition.
POSITIONS = 128
# Columns of a row whose maximum is its shift.
SAMPLE_COLUMNS = 512
# Logits are raised to it: finite whatever the temperature is, exp is 0 there, and bfloat16 has it.
LOWEST = -(2.0**116)
# The temperatures for which that holds, and for which their squares are normal numbers.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1e6


@dataclass(frozen=True)
class DistillationOptions:
    """Options of the loss, by the names that operators and kernels have for them.

    Attributes:
        beta: 0: KL(teacher || student); 1: KL(student || teacher); between them generalized Jensen-Shannon.
        temperature: T, divides all logits.
        ignore_index: the label of positions that do not count.
    """

    beta: float = 0.0
    temperature: float = 1.0
    ignore_index: int = -100


@dataclass(frozen=True)
class Part:
    """Positions ``start`` to ``end``."""

    start: int
    end: int

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """A view of a tensor [N] or [N, V]; the tensor itself where all are taken."""
        if (self.start, self.end) == (0, int(tensor_hbm.shape[0])):
            return tensor_hbm
        return tensor_hbm.slice(0, self.start, self.end, 1)


@dataclass(frozen=True)
class Launch:
    """A launch of either kernel.

    Attributes:
        function: that is named in errors.
        student_hbm, teacher_hbm: [N, V].
        labels_hbm: [N], int32; None: every position counts.
        options: of the loss.
        tiling: of a row.
        is_backward: it is the gradient.
    """

    function: str
    student_hbm: nl.NkiTensor
    teacher_hbm: nl.NkiTensor
    labels_hbm: nl.NkiTensor | None
    options: DistillationOptions
    tiling: DistillationTiling
    is_backward: bool

    @property
    def num_positions(self) -> int:
        """N."""
        return int(self.student_hbm.shape[0])

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.student_hbm.shape[1])

    @property
    def bytes_of_pair(self) -> int:
        """Of a logit of each on chip."""
        return dtype_bytes(tile_dtype(self.student_hbm.dtype)) + dtype_bytes(tile_dtype(self.teacher_hbm.dtype))

    @property
    def is_mixed(self) -> bool:
        """The loss is a Jensen-Shannon divergence: it needs the mixture of both distributions."""
        return 0.0 < self.options.beta < 1.0

    @property
    def is_reverse(self) -> bool:
        """The student's probabilities are the weights of the sum."""
        return self.options.beta == 1.0

    @property
    def has_samples(self) -> bool:
        """The shift of a row is the maximum of a part of it."""
        return min(self.vocab_size, self.tiling.chunk_size) < self.vocab_size or self.vocab_size > SAMPLE_COLUMNS

    @property
    def scale(self) -> float:
        """1 / T."""
        return 1.0 / self.options.temperature

    def parts(self) -> list[Part]:
        """The positions in parts of as many as rows can be collected of, to be computed anew."""
        most = limited_batches(BATCHES_MAX) * POSITIONS * int(nl.num_programs())
        return [Part(start, min(start + most, self.num_positions)) for start in range(0, self.num_positions, most)]

    def of_part(self, part: Part) -> Launch:
        """A launch on its positions alone."""
        return replace(
            self,
            student_hbm=part.of(self.student_hbm),
            teacher_hbm=part.of(self.teacher_hbm),
            labels_hbm=None if self.labels_hbm is None else part.of(self.labels_hbm),
        )

    def batches(self) -> list[Batch]:
        """Those of this core."""
        return batches_of_core(self.num_positions, nl.num_programs(), nl.program_id(), POSITIONS)


def tile_dtype(dtype: nl.DType) -> nl.DType:
    """The type of logits on chip: float16 has too little range for what stands for -inf."""
    return nl.bfloat16 if dtype == nl.bfloat16 else nl.float32
