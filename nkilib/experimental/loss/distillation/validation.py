"""What the kernels accept. Everything else is refused here, before the first instruction."""

from __future__ import annotations

from nkilib.core.rows.checks import FLOATS, require, require_indirect_dma, require_vector
from nkilib.experimental.loss.distillation.host.tiling import Form, most_columns
from nkilib.experimental.loss.distillation.options import (
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    Launch,
)
from nkilib.nki import nl

# Parts of a row whose sums are kept.
MOST_CHUNKS = 512
_INT32 = 2**31


def validate(launch: Launch) -> None:
    """Logits, labels and options of either kernel."""
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
        require(
            tensor_hbm.dtype in FLOATS,
            f"{function}: {name} must be nl.bfloat16, nl.float16 or nl.float32, got {tensor_hbm.dtype}; "
            f"cast it, as with .float()",
        )
    _validate_options(launch)
    labels_hbm = launch.labels_hbm
    if labels_hbm is not None:
        require(
            tuple(labels_hbm.shape) == shape[:1] and labels_hbm.dtype == nl.int32,
            f"{function}: labels_hbm must be int32 of shape ({shape[0]},), got {labels_hbm.dtype} of shape "
            f"{tuple(labels_hbm.shape)}; cast and flatten it as the positions",
        )
    require(
        isinstance(options.ignore_index, int) and -_INT32 <= options.ignore_index < _INT32,
        f"{function}: ignore_index must be an int32, got {options.ignore_index}; use a label that is none, as -100",
    )


def validate_tiling(launch: Launch) -> None:
    """Chunks that fit a partition, and whose sums do."""
    chunk_size, vocab_size = launch.tiling.chunk_size, launch.vocab_size
    largest = most_columns(vocab_size, launch.bytes_of_pair, Form.of(launch.is_mixed, launch.is_backward))
    require(
        isinstance(chunk_size, int) and 0 < chunk_size <= largest and vocab_size <= MOST_CHUNKS * chunk_size,
        f"{launch.function}: chunk_size must be an integer from 1 to {largest} that makes at most {MOST_CHUNKS} "
        f"chunks of {vocab_size} entries, got {chunk_size}; pass chunk_size={largest}",
    )


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


def validate_vectors(launch: Launch, vectors: dict[str, nl.NkiTensor]) -> None:
    """What a backward is given of each position."""
    for name, vector_hbm in vectors.items():
        require_vector(launch.function, name, vector_hbm, launch.num_positions, "the positions")
