# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of the arguments of the CTC kernels, before the first instruction."""

from __future__ import annotations

from math import prod

from nkilib.core.host.options import is_integer
from nkilib.core.losses.checks import require_floats, require_reduction
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require, require_flag, require_indirect_dma
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.ctc.gradient import PIECE_COLUMNS
from nkilib.experimental.loss.ctc.occupancies import kept_bytes, kept_wavefronts, runs
from nkilib.experimental.loss.ctc.plan import BatchShape, Plan, steps_that_fit
from nkilib.nki import nl

# Sums of the logarithm of 0 stay finite.
_STEPS_MAX = 2**24
# A row of 512 bytes or less that is stored takes twice as long; a pair has two states of four bytes. Loads have no such
# limit, and with fewer pairs an instruction gets no shorter.
_FORWARD_PAIRS, _BACKWARD_PAIRS = 64, 32
# Tiles of a float32 for each pair that a group keeps, and those of a step.
_CONSTANT_COLUMNS = 20
# Of all states of a sequence, when the chunks are done.
_LIKELIHOOD_TILES = 6
_SMALL_BYTES = 8 * 1024
# Pieces of the gradient that are there at a time.
_PIECES = 2


def require_batch(
    function: str,
    log_probs_hbm: nl.NkiTensor,
    targets_hbm: nl.NkiTensor | None,
    lengths: dict[str, nl.NkiTensor],
    blank: int,
) -> None:
    """Check log-probabilities [T, N, C], int32 targets [N, S], int32 lengths [N] by name, and the class of the
    blank.
    """
    shape = tuple(log_probs_hbm.shape)
    require(
        len(shape) == 3 and prod(shape) > 0,
        f"{function}: log_probs_hbm must have shape (T, N, C) with at least one element, got {shape}; launch nothing "
        f"for an empty batch, and unsqueeze(1) a single sequence",
    )
    steps, sequences, classes = shape
    require_floats(function, "log_probs_hbm.dtype", log_probs_hbm.dtype)
    require(
        steps <= _STEPS_MAX, f"{function}: log_probs_hbm must have at most {_STEPS_MAX} time steps, got {steps}; cut it"
    )
    if targets_hbm is not None:
        got = tuple(targets_hbm.shape)
        require(
            len(got) == 2 and got[0] == sequences and got[1] > 0,
            f"{function}: targets_hbm must have shape ({sequences}, S), S > 0, or be None if no target has a label, "
            f"got {got}; pad the targets",
        )
        _require_int32(function, "targets_hbm", targets_hbm)
    for name, lengths_hbm in lengths.items():
        require(
            tuple(lengths_hbm.shape) == (sequences,),
            f"{function}: {name} must have shape ({sequences},), one for each sequence, got {tuple(lengths_hbm.shape)}",
        )
        _require_int32(function, name, lengths_hbm)
    require(
        is_integer(blank) and 0 <= blank < classes,
        f"{function}: blank must be a class from 0 to {classes - 1}, got {blank}",
    )


def require_options(function: str, reduction: str, zero_infinity: bool) -> None:
    """Check the options of the loss, and that the device has the indirect DMA that the kernels need."""
    require_reduction(function, reduction)
    require_flag(function, "zero_infinity", zero_infinity)
    require_indirect_dma(function)


def require_float32(function: str, name: str, tensor_hbm: nl.NkiTensor, shape: tuple[int, ...]) -> None:
    """Check the shape and type of a result of the forward that the backward takes."""
    require(
        tuple(tensor_hbm.shape) == shape and tensor_hbm.dtype == nl.float32,
        f"{function}: {name} must be float32 of shape {shape}, as the forward returned it, got {tensor_hbm.dtype} of "
        f"shape {tuple(tensor_hbm.shape)}",
    )


def fitting_plan(function: str, shape: BatchShape, labels: int, dtype: nl.DType, of_backward: bool) -> Plan:
    """Return the plan of a launch, with the longest chunks of time that fit SBUF."""
    fewest_pairs = _BACKWARD_PAIRS if of_backward else _FORWARD_PAIRS
    plan = Plan.make(shape, labels, fewest_pairs, 1)
    element, float32 = dtype_bytes(dtype), dtype_bytes(nl.float32)
    width = 2 * plan.pairs + 1
    of_step = 2 * element * (plan.classes + plan.pairs) + float32 * (5 * plan.pairs + 2 * width + 4)
    fixed_bytes = 2 * float32 * width + _CONSTANT_COLUMNS * float32 * (plan.pairs + 1) + _SMALL_BYTES
    if of_backward:
        transposed = kept_wavefronts(plan.blocks) * len(runs(plan.pairs)) * PARTITIONS
        of_step += float32 * (2 * width + 2 * plan.pairs + transposed)
        fixed_bytes += _piece_bytes(plan, dtype) + kept_bytes(plan.group(0))
    else:
        of_states, available = _LIKELIHOOD_TILES * float32 * plan.states, usable_sbuf_bytes()
        require(
            of_states <= available,
            f"{function}: the states of {labels} labels take {of_states} bytes of an SBUF partition, which has "
            f"{available}; pass shorter targets",
        )
    chunk = steps_that_fit(of_step, fixed_bytes)
    require(
        chunk > 0,
        f"{function}: a time step of {plan.classes} classes and {labels} labels takes {of_step} bytes of an SBUF "
        f"partition, beside {fixed_bytes}, which has {usable_sbuf_bytes()}; pass fewer classes, as "
        f"bfloat16, or shorter targets",
    )
    return Plan.make(shape, labels, fewest_pairs, chunk)


def _piece_bytes(plan: Plan, dtype: nl.DType) -> int:
    """Return the bytes of a partition that pieces of the gradient take.

    They are float32; for another type of the log-probabilities, loaded and stored pieces in that type are
    added.
    """
    of_element = dtype_bytes(nl.float32) + (0 if dtype == nl.float32 else 2 * dtype_bytes(dtype))
    return _PIECES * of_element * min(PIECE_COLUMNS, plan.rows * plan.classes)


def _require_int32(function: str, name: str, tensor_hbm: nl.NkiTensor) -> None:
    require(
        tensor_hbm.dtype == nl.int32,
        f"{function}: {name} must be nl.int32, got {tensor_hbm.dtype}; cast it",
    )
