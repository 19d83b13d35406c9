# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of the bytes that cross HBM, of the arrays that are written over, and of the number of instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.rows.sbuf import MAX_CHUNK_BUFFERS
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.options import PLAIN_PLAN
from nkilib.nki import nl
from nkilib.simulator.terms.spec import spec

from .loss_checks import as_nl, backward, forward
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, Array, normal_batch, pair_name

# Bytes a position beside its logits: target (4), LSE and loss (4 each at most), and a gathered or scattered element
# (4), each with room for one element more of the same kind.
SMALL_BYTES_PER_POSITION = 32

# N, V, positions_per_batch, chunk_size: single chunk; many ragged chunks and batches.
TRAFFIC_SHAPES = [(6, 8192, 32, 8192), (40, 8190, 8, 1000)]


def _inputs(positions: int, vocabulary: int, logits_dtype: Any) -> tuple[Array, Array, Array]:
    logits, targets = normal_batch(positions, vocabulary)
    logits = logits.astype(logits_dtype)
    _, lse = forward(logits, targets, cores=1, chunk_size=vocabulary, dtype=as_nl(FP32))
    return logits, targets, lse


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("shape", TRAFFIC_SHAPES, ids=str)
def test_forward_reads_the_logits_once(shape: Any, logits_dtype: Any, dtype: Any, cores: int) -> None:
    positions, vocabulary, positions_per_batch, chunk_size = shape
    logits, targets, _ = _inputs(positions, vocabulary, logits_dtype)
    before = logits.tobytes()
    with nkilib.simulator.recording() as record:
        forward(
            logits,
            targets,
            cores=cores,
            positions_per_batch=positions_per_batch,
            chunk_size=chunk_size,
            dtype=as_nl(dtype),
        )
    small = SMALL_BYTES_PER_POSITION * positions
    assert logits.nbytes + targets.nbytes <= record.hbm_read_bytes <= 1.01 * logits.nbytes + small
    assert 2 * dtype.itemsize * positions <= record.hbm_written_bytes <= small
    assert logits.tobytes() == before


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("shape", TRAFFIC_SHAPES, ids=str)
def test_backward_reads_once_and_writes_once(
    shape: Any, logits_dtype: Any, dtype: Any, cores: int, inplace: bool
) -> None:
    positions, vocabulary, positions_per_batch, chunk_size = shape
    logits, targets, lse = _inputs(positions, vocabulary, logits_dtype)
    with nkilib.simulator.recording() as record:
        gradient = backward(
            logits,
            targets,
            lse,
            cores=cores,
            positions_per_batch=positions_per_batch,
            chunk_size=chunk_size,
            dtype=as_nl(dtype),
            inplace=inplace,
        )
    small = SMALL_BYTES_PER_POSITION * positions
    assert gradient.dtype == (logits_dtype if inplace else dtype)
    assert logits.nbytes + targets.nbytes + lse.nbytes <= record.hbm_read_bytes <= 1.01 * logits.nbytes + small
    assert gradient.nbytes <= record.hbm_written_bytes <= 1.01 * gradient.nbytes + small


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_in_place_writes_over_the_logits_and_apart_leaves_them(logits_dtype: Any, dtype: Any, cores: int) -> None:
    logits, targets, lse = _inputs(11, 97, logits_dtype)
    before, options = logits.copy(), {"cores": cores, "chunk_size": 20, "dtype": as_nl(dtype)}
    apart = backward(logits, targets, lse, inplace=False, **options)
    assert apart is not logits and not np.shares_memory(apart, logits)
    assert logits.tobytes() == before.tobytes()
    in_place = backward(logits, targets, lse, inplace=True, **options)
    assert in_place is logits
    assert not (logits.astype(np.float32) == before.astype(np.float32)).any(), "an element kept its logit"
    np.testing.assert_array_equal(in_place.astype(BF16), apart.astype(BF16))


def test_targets_and_lse_are_left_alone() -> None:
    logits, targets, lse = _inputs(11, 97, FP32)
    before = targets.tobytes(), lse.tobytes()
    forward(logits, targets, cores=2, chunk_size=20)
    backward(logits, targets, lse, cores=2, chunk_size=20)
    assert (targets.tobytes(), lse.tobytes()) == before


@pytest.mark.parametrize("num_chunks", [1, 8, 16, 43, 64, 128, 129])
def test_small_tiles_fit_what_is_set_aside_for_them(num_chunks: int) -> None:
    """The small tiles fit beside the chunk buffers, whatever number of batches shares the statistics."""
    positions, chunk_size = 128 * 19, 10
    logits = spec((positions, num_chunks * chunk_size), nl.float32)
    targets, lse = spec((positions,), nl.int32), spec((positions,), nl.float32)
    tiling = {"positions_per_batch": 128, "chunk_size": chunk_size, "dtype": nl.float32}
    for kernel, arguments in ((cross_entropy_forward, (targets,)), (cross_entropy_backward, (targets, lse))):
        with nkilib.simulator.recording() as record:
            kernel(logits, *arguments, **tiling)
        buffers = min(MAX_CHUNK_BUFFERS, num_chunks * 19) * chunk_size * 4
        assert buffers < record.sbuf_peak_bytes <= buffers + PLAIN_PLAN.small_bytes


def _instruction_counts(positions: int, cores: int, inplace: bool | None) -> dict[str, int]:
    """Instructions of one launch by name; ``inplace=None`` is the forward."""
    logits, targets, lse = _inputs(positions, 200, BF16)
    options = {"cores": cores, "positions_per_batch": 128, "chunk_size": 60}
    with nkilib.simulator.recording() as record:
        if inplace is None:
            forward(logits, targets, **options)
        else:
            backward(logits, targets, lse, inplace=inplace, **options)
    return dict(record.instruction_counts)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("inplace", [None, True, False], ids=["forward", "backward in place", "backward apart"])
def test_instructions_do_not_grow_with_the_rows_of_a_batch(inplace: bool | None, cores: int) -> None:
    few, many = (_instruction_counts(rows * cores, cores, inplace) for rows in (8, 128))
    assert sum(few.values()) > 0
    assert few == many


@pytest.mark.parametrize("inplace", [None, True, False], ids=["forward", "backward in place", "backward apart"])
def test_instructions_grow_with_batches_and_split_over_cores(inplace: bool | None) -> None:
    """The counter counts: two batches take more than one, and two cores with one batch each take twice one core's."""
    one, two = (sum(_instruction_counts(rows, 1, inplace).values()) for rows in (128, 256))
    assert one < two <= 2 * one
    both = sum(_instruction_counts(256, 2, inplace).values())
    assert both >= two
