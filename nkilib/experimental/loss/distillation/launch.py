# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of the distillation kernels: logits, labels and options, and their checks before the first instruction.

N positions, V classes; *rows* are the positions, and the *shift* of a row is subtracted from its logits before
exponentials are taken. :class:`Launch` has logits, labels, :class:`DistillationOptions` and tiling, and divides the
positions among cores and into parts (:class:`Part`). :func:`validate`, :func:`validate_tiling` and, for a backward,
:func:`validate_vectors` check the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nkilib.core.hardware import PARTITIONS
from nkilib.core.host.options import is_integer
from nkilib.core.loss_arguments import require_float_tensor
from nkilib.core.plan_limits import limited_batches
from nkilib.core.rows.batches import Batch, batches_of_core
from nkilib.core.rows.checks import require, require_indirect_dma, require_vector
from nkilib.core.rows.recomputation import BATCHES_MAX
from nkilib.core.rows.row_plan import RowPlan
from nkilib.core.rows.row_plan import batches_of_core as row_batches_of_core
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.stream import SplitRows
from nkilib.experimental.loss.cross_entropy.validation import validate_temperatures
from nkilib.experimental.loss.distillation.tiling import (
    SAMPLE_COLUMNS,
    DistillationTiling,
    Form,
    most_columns,
    part_columns,
)
from nkilib.experimental.loss.temperatures import TemperatureLimits
from nkilib.nki import nl

# Positions processed at a time, one per partition.
POSITIONS = 128
# Logits are raised to it: finite whatever the temperature is, exp is 0 there, and bfloat16 has it.
LOWEST = -(2.0**116)
# The temperatures for which that holds, and for which their squares are normal numbers.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1e6
TEMPERATURE_LIMITS = TemperatureLimits(LEAST_TEMPERATURE, MOST_TEMPERATURE)
# The maximum number of parts of a row whose sums are kept.
MOST_CHUNKS = 512
_INT32 = 2**31


def tile_dtype(dtype: nl.DType) -> nl.DType:
    """Return the dtype of logits on chip: bfloat16 stays, float16 becomes float32.

    float16 has no room for the finite value that replaces -inf.
    """
    return nl.bfloat16 if dtype == nl.bfloat16 else nl.float32


def bytes_of_pair(student: nl.DType, teacher: nl.DType) -> int:
    """Return the bytes on chip of one logit of the student and one of the teacher together, from their types."""
    return dtype_bytes(tile_dtype(student)) + dtype_bytes(tile_dtype(teacher))


@dataclass(frozen=True)
class DistillationOptions:
    """Options of the loss; the names are those of the kernels' arguments.

    Attributes:
        beta: 0 for KL(teacher || student), 1 for KL(student || teacher); between them generalized Jensen-Shannon.
        temperature: T, the divisor of all logits.
        ignore_index: the label of ignored positions.
    """

    beta: float = 0.0
    temperature: float = 1.0
    ignore_index: int = -100


@dataclass(frozen=True)
class Part:
    """The positions of a launch from ``start`` to ``end``, ``end`` excluded."""

    start: int
    end: int

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of a tensor [N] or [N, V] for these positions; the tensor itself if the part has all
        positions.
        """
        if (self.start, self.end) == (0, int(tensor_hbm.shape[0])):
            return tensor_hbm
        return tensor_hbm.slice(0, self.start, self.end, 1)


@dataclass(frozen=True)
class Launch:
    """A launch of either kernel.

    Attributes:
        function: the name of the function in error messages.
        student_hbm, teacher_hbm: the logits, [N, V].
        labels_hbm: the labels, [N], int32; None means that every position is valid.
        options: the options of the loss.
        tiling: the tiling of a row.
        is_backward: whether the launch computes the gradient.
        temperature_hbm: the temperatures of positions, float32 [N] or [1], in place of the temperature of the options;
            or None.
    """

    function: str
    student_hbm: nl.NkiTensor
    teacher_hbm: nl.NkiTensor
    labels_hbm: nl.NkiTensor | None
    options: DistillationOptions
    tiling: DistillationTiling
    is_backward: bool
    temperature_hbm: nl.NkiTensor | None = None

    @property
    def num_positions(self) -> int:
        """The number of positions, N."""
        return int(self.student_hbm.shape[0])

    @property
    def vocab_size(self) -> int:
        """The vocabulary size, V."""
        return int(self.student_hbm.shape[1])

    @property
    def row_columns(self) -> int:
        """The number of columns that a position has in each of its partitions, padding included."""
        return part_columns(self.vocab_size, self.tiling.partitions_per_position)

    @property
    def is_split(self) -> bool:
        """Whether a position lies on several partitions."""
        return self.tiling.partitions_per_position > 1

    @property
    def form(self) -> Form:
        """The form of the launch."""
        return Form.of(self.is_mixed, self.is_backward)

    @property
    def bytes_of_pair(self) -> int:
        """The bytes on chip of one logit of the student and one of the teacher together."""
        return bytes_of_pair(self.student_hbm.dtype, self.teacher_hbm.dtype)

    @property
    def is_mixed(self) -> bool:
        """Whether the loss is a Jensen-Shannon divergence, which needs the mixture of both distributions."""
        return 0.0 < self.options.beta < 1.0

    @property
    def is_reverse(self) -> bool:
        """Whether the student's probabilities are the weights of the divergence: KL(student || teacher)."""
        return self.options.beta == 1.0

    @property
    def has_samples(self) -> bool:
        """Whether the shift of a row is the maximum of only its first columns, not of all."""
        return min(self.vocab_size, self.tiling.chunk_size) < self.vocab_size or self.vocab_size > SAMPLE_COLUMNS

    def parts(self) -> list[Part]:
        """Return the parts into which the positions are divided: each part is processed before the next one begins.

        The forward recomputes some rows at the end of a part, and remembers on chip which ones. It can do that for
        ``BATCHES_MAX`` batches of rows per core, so a part has no more. Where positions are split, it is their
        coefficients that limit the number of batches.
        """
        positions = POSITIONS // self.tiling.partitions_per_position
        most = limited_batches(BATCHES_MAX) * positions * int(nl.num_programs())
        return [Part(start, min(start + most, self.num_positions)) for start in range(0, self.num_positions, most)]

    def of_part(self, part: Part) -> Launch:
        """Return a launch on the positions of a part alone."""
        temperature_hbm = self.temperature_hbm
        if temperature_hbm is not None and tuple(temperature_hbm.shape) != (1,):
            temperature_hbm = part.of(temperature_hbm)
        return replace(
            self,
            student_hbm=part.of(self.student_hbm),
            teacher_hbm=part.of(self.teacher_hbm),
            labels_hbm=None if self.labels_hbm is None else part.of(self.labels_hbm),
            temperature_hbm=temperature_hbm,
        )

    def batches(self) -> list[Batch]:
        """Return the batches of this core, with one position a partition."""
        return batches_of_core(self.num_positions, nl.num_programs(), nl.program_id(), POSITIONS)

    def split_batches(self) -> list[SplitRows]:
        """Return the batches of this core, with several partitions a position."""
        parts = self.tiling.partitions_per_position
        plan = RowPlan(self.vocab_size, parts, self.vocab_size // parts, self.row_columns, 1, 1, 1)
        cores, core = nl.num_programs(), nl.program_id()
        return [SplitRows(batch) for batch in row_batches_of_core(plan, 1, self.num_positions, cores, core)]


def _validate_options(launch: Launch) -> None:
    beta, temperature = launch.options.beta, launch.options.temperature
    require(
        0.0 <= beta <= 1.0,
        f"{launch.function}: beta must be from 0, for KL(teacher || student), to 1, for KL(student || teacher), "
        f"got {beta}; 0.5 is the Jensen-Shannon divergence",
    )
    require(
        LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE,
        f"{launch.function}: temperature must be from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}, got {temperature}; "
        f"it divides the logits",
    )
    validate_temperatures(
        launch.function, launch.temperature_hbm, launch.num_positions, launch.options.temperature, "the positions"
    )


def validate(launch: Launch) -> None:
    """Check the logits, labels and options of a forward or backward launch.

    Raises:
        AssertionError: if an argument is not accepted; the message names function, requirement, value and remedy.
    """
    function, student_hbm, options = launch.function, launch.student_hbm, launch.options
    require_indirect_dma(function)
    shape = tuple(student_hbm.shape)
    require(
        len(shape) == 2 and min(shape) > 0,
        f"{function}: student_hbm must have shape (N, V) with N, V > 0, got {shape}; flatten all positions",
    )
    require(
        tuple(launch.teacher_hbm.shape) == shape,
        f"{function}: teacher_hbm must have the shape of student_hbm, {shape}, got {tuple(launch.teacher_hbm.shape)}; "
        f"both models must have one vocabulary",
    )
    for name, tensor_hbm in (("student_hbm", student_hbm), ("teacher_hbm", launch.teacher_hbm)):
        require_float_tensor(function, name, tensor_hbm.dtype)
    _validate_options(launch)
    labels_hbm = launch.labels_hbm
    if labels_hbm is not None:
        require(
            tuple(labels_hbm.shape) == shape[:1] and labels_hbm.dtype == nl.int32,
            f"{function}: labels_hbm must be int32 of shape ({shape[0]},), got {labels_hbm.dtype} of shape "
            f"{tuple(labels_hbm.shape)}; cast and flatten it as the positions",
        )
    require(
        is_integer(options.ignore_index) and -_INT32 <= options.ignore_index < _INT32,
        f"{function}: ignore_index must be an int32, got {options.ignore_index}; "
        f"use a label that is no class, such as -100",
    )
    _validate_parts(launch)


def _validate_parts(launch: Launch) -> None:
    parts = launch.tiling.partitions_per_position
    require(
        is_integer(parts) and 1 <= parts <= PARTITIONS and parts & (parts - 1) == 0,
        f"{launch.function}: partitions_per_position must be a power of two from 1 to {PARTITIONS}, got {parts}; "
        f"take that of choose_distillation_tiling",
    )


def validate_tiling(launch: Launch) -> None:
    """Check that the chunks of the tiling, and the sums of these chunks, fit a partition.

    Raises:
        AssertionError: if they do not; the message names function, requirement, value and remedy.
    """
    chunk_size, columns = launch.tiling.chunk_size, launch.row_columns
    largest = most_columns(columns, launch.bytes_of_pair, launch.form)
    require(
        is_integer(chunk_size) and 0 < chunk_size <= largest and columns <= MOST_CHUNKS * chunk_size,
        f"{launch.function}: chunk_size must be an integer from 1 to {largest} that makes at most {MOST_CHUNKS} "
        f"chunks of {columns} entries, got {chunk_size}; pass chunk_size={largest}",
    )


def validate_vectors(launch: Launch, vectors: dict[str, nl.NkiTensor]) -> None:
    """Check that each vector that a backward receives, given by its name, has one value for each position.

    Raises:
        AssertionError: if a vector does not; the message names function, requirement, value and remedy.
    """
    for name, vector_hbm in vectors.items():
        require_vector(launch.function, name, vector_hbm, launch.num_positions, "the positions")
