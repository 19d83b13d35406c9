# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of the plain kernels: every shape, tuning and pair of types gives accurate results, and launches that should
agree do so bit for bit; the bytes that cross HBM, arrays that are written over, and the number of instructions; CPU
torch tensors in and out, with the bits that numpy arrays give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.core.rows.sbuf import MAX_CHUNK_BUFFERS
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.launch import PLAIN_PLAN
from nkilib.nki import nl
from nkilib.simulator.terms.spec import spec
from tests.torch_types import named_type

from .loss_checks import as_nl, backward, check_backward, check_forward, forward, same_bits
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, Array, normal_batch, pair_name

if TYPE_CHECKING:
    import torch

# name -> N, V, positions_per_batch, chunk_size
SHAPES = {
    "one element": (1, 1, 1, 1),
    "one position": (1, 507, 32, 100),
    "one position a batch": (5, 30, 1, 30),
    "two positions": (2, 507, 128, 507),
    "three positions": (3, 507, 1, 100),
    "prime counts": (37, 509, 5, 101),
    "a last batch of one": (33, 100, 32, 100),
    "a last batch of one on each core": (34, 100, 16, 100),
    "one core with a batch more": (33, 100, 16, 100),
    "a full batch": (128, 100, 128, 33),
    "a batch and a bit": (129, 100, 128, 33),
    "more than one full batch a core": (300, 10, 128, 10),
    "vocabulary of one": (9, 1, 4, 1),
    "vocabulary of two": (9, 2, 4, 1),
    "vocabulary = chunk_size": (9, 256, 4, 256),
    "two whole chunks": (9, 256, 4, 128),
    "last chunk of one": (9, 257, 4, 128),
    "last chunk one short": (9, 255, 4, 128),
    "chunks of one": (9, 23, 4, 1),
    "chunks of two": (9, 23, 4, 2),
    "many chunks": (3, 2000, 2, 7),
}


def _check_all(logits: Array, targets: Array, dtype: Any, **options: Any) -> None:
    """Forward and backward, both reductions, in place and not, against the oracle."""
    _, lse = check_forward(logits, targets, dtype, FP32, **options)
    check_backward(logits, targets, lse, dtype, reduction="mean", inplace=True, **options)
    check_backward(logits, targets, lse, dtype, reduction="sum", inplace=False, **options)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("name", SHAPES)
def test_listed_shapes(name: str, logits_dtype: Any, dtype: Any, cores: int) -> None:
    positions, vocabulary, positions_per_batch, chunk_size = SHAPES[name]
    logits, targets = normal_batch(positions, vocabulary)
    _check_all(
        logits.astype(logits_dtype),
        targets,
        dtype,
        cores=cores,
        positions_per_batch=positions_per_batch,
        chunk_size=chunk_size,
    )


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    vocabulary = draw(st.integers(1, 70))
    chunk_size = draw(st.integers(1, vocabulary))
    return draw(st.integers(1, 40)), vocabulary, draw(st.integers(1, 40)), chunk_size


@given(shape=_shapes(), dtypes=st.sampled_from(DTYPE_PAIRS), cores=st.sampled_from([1, 2]))
def test_any_shape(shape: tuple[int, int, int, int], dtypes: Any, cores: int) -> None:
    positions, vocabulary, positions_per_batch, chunk_size = shape
    logits_dtype, dtype = dtypes
    logits, targets = normal_batch(positions, vocabulary, seed=sum(shape))
    _check_all(
        logits.astype(logits_dtype),
        targets,
        dtype,
        cores=cores,
        positions_per_batch=positions_per_batch,
        chunk_size=chunk_size,
    )


@pytest.mark.parametrize(("positions", "cores"), [(130, 1), (3, 2)])
@pytest.mark.parametrize(("dtype", "chunk_size"), [(BF16, 65535), (FP32, 49152)], ids=str)
def test_largest_tiles(dtype: Any, chunk_size: int, positions: int, cores: int) -> None:
    """128 positions of the largest chunk that 24 MiB admit: one chunk buffer fits a partition, two do not."""
    logits, targets = normal_batch(positions, chunk_size + 3)
    logits = logits.astype(dtype)
    options = {"cores": cores, "positions_per_batch": 128, "chunk_size": chunk_size}
    _, lse = check_forward(logits, targets, dtype, FP32, **options)
    check_backward(logits, targets, lse, dtype, **options)


@pytest.mark.parametrize(("logits_dtype", "dtype", "chunk_size"), [(FP32, BF16, 65535), (BF16, FP32, 49152)], ids=str)
def test_largest_tiles_of_the_other_type(logits_dtype: Any, dtype: Any, chunk_size: int) -> None:
    logits, targets = normal_batch(5, chunk_size + 1)
    _check_all(logits.astype(logits_dtype), targets, dtype, cores=2, positions_per_batch=128, chunk_size=chunk_size)


def test_default_arguments() -> None:
    """positions_per_batch=32, chunk_size=32768, bfloat16 results, reduction "mean", in place."""
    logits, targets = normal_batch(67, 40000)
    logits = logits.astype(BF16)
    loss, lse = forward(logits, targets, cores=2)
    assert loss.dtype == lse.dtype == BF16
    stated = forward(
        logits, targets, cores=2, positions_per_batch=32, chunk_size=32768, dtype=as_nl(BF16), lse_dtype=None
    )
    assert same_bits(loss, stated[0]) and same_bits(lse, stated[1])
    expected = check_backward(
        logits, targets, lse, BF16, cores=2, reduction="mean", inplace=True, positions_per_batch=32, chunk_size=32768
    )
    assert backward(logits, targets, lse, cores=2) is logits
    assert same_bits(logits, expected)


@pytest.mark.parametrize(("dtype", "lse_dtype"), [(a, b) for a in (BF16, FP32) for b in (None, BF16, FP32)], ids=str)
def test_lse_dtype_changes_the_lse_only(dtype: Any, lse_dtype: Any) -> None:
    logits, targets = normal_batch(9, 60)
    options: dict[str, Any] = {"cores": 2, "chunk_size": 25, "dtype": as_nl(dtype)}
    loss, lse = forward(logits, targets, lse_dtype=None if lse_dtype is None else as_nl(lse_dtype), **options)
    exact_loss, exact_lse = forward(logits, targets, lse_dtype=as_nl(FP32), **options)
    assert same_bits(loss, exact_loss)
    assert lse.dtype == (dtype if lse_dtype is None else lse_dtype)
    assert same_bits(lse, exact_lse.astype(lse.dtype))


def _launch(logits: Array, targets: Array, dtype: Any, inplace: bool, **options: Any) -> tuple[Array, Array, Array]:
    loss, lse = forward(logits, targets, dtype=as_nl(dtype), lse_dtype=as_nl(FP32), **options)
    gradient = backward(logits.copy(), targets, lse, dtype=as_nl(dtype), inplace=inplace, **options)
    return loss, lse, gradient


@pytest.mark.parametrize("lse_dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("positions", [81, 82, 160, 177])
def test_results_that_the_cores_swap_are_those_of_one_core(positions: int, lse_dtype: Any) -> None:
    """The cores swap those of four batches or more, unless one core has a batch more than the other one."""
    logits, targets = normal_batch(positions, 150)
    tiling = {"positions_per_batch": 8, "chunk_size": 100, "dtype": nl.bfloat16, "lse_dtype": as_nl(lse_dtype)}
    swapped, alone = (cross_entropy_forward[cores](logits, targets, **tiling) for cores in (2, 1))
    for first, second in zip(swapped, alone, strict=True):
        assert np.abs(np.asarray(first, np.float64)).min() > 0.0
        assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_one_and_two_cores_agree_bit_for_bit(logits_dtype: Any, dtype: Any, inplace: bool) -> None:
    for positions in (1, 2, 37):
        logits, targets = normal_batch(positions, 1009)
        logits = logits.astype(logits_dtype)
        options = {"positions_per_batch": 8, "chunk_size": 300}
        one = _launch(logits, targets, dtype, inplace, cores=1, **options)
        two = _launch(logits, targets, dtype, inplace, cores=2, **options)
        assert all(same_bits(first, second) for first, second in zip(one, two, strict=True))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_positions_per_batch_changes_no_bit(logits_dtype: Any, dtype: Any, cores: int) -> None:
    logits, targets = normal_batch(131, 257)
    logits = logits.astype(logits_dtype)
    expected = _launch(logits, targets, dtype, False, cores=cores, positions_per_batch=1, chunk_size=100)
    for positions_per_batch in (2, 7, 32, 64, 128):
        results = _launch(
            logits, targets, dtype, False, cores=cores, positions_per_batch=positions_per_batch, chunk_size=100
        )
        assert all(same_bits(first, second) for first, second in zip(results, expected, strict=True))


def test_a_launch_without_cores_is_one_core() -> None:
    from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward

    logits, targets = normal_batch(5, 40)
    options: dict[str, Any] = {"chunk_size": 40, "dtype": as_nl(FP32)}
    loss, lse = cross_entropy_forward(logits, targets, **options)
    expected_loss, expected_lse = forward(logits, targets, cores=1, **options)
    assert same_bits(loss, expected_loss) and same_bits(lse, expected_lse)
    gradient = cross_entropy_backward(logits.copy(), targets, lse, **options)
    assert same_bits(gradient, backward(logits.copy(), targets, lse, cores=1, **options))


def test_the_gradient_does_not_depend_on_the_chunks() -> None:
    """Every element stands alone when the LSE is given."""
    logits, targets = normal_batch(7, 100)
    _, lse = forward(logits, targets, cores=1, chunk_size=100, dtype=as_nl(FP32))
    options: dict[str, Any] = {"cores": 1, "dtype": as_nl(FP32), "inplace": False}
    whole = backward(logits, targets, lse, chunk_size=100, **options)
    for chunk_size in (1, 3, 99):
        assert same_bits(backward(logits, targets, lse, chunk_size=chunk_size, **options), whole)


def test_rows_do_not_mix() -> None:
    """Changing one row changes that row's results alone, bit for bit."""
    logits, targets = normal_batch(20, 100)
    before = _launch(logits, targets, FP32, False, cores=2, positions_per_batch=4, chunk_size=30)
    changed = logits.copy()
    changed[11] = changed[11][::-1] * 2
    after = _launch(changed, targets, FP32, False, cores=2, positions_per_batch=4, chunk_size=30)
    others = np.delete(np.arange(20), 11)
    for first, second in zip(before, after, strict=True):
        assert same_bits(first[others], second[others])
        assert (first[11] != second[11]).any()


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


OPTIONS: dict[str, Any] = {"cores": 2, "positions_per_batch": 4, "chunk_size": 30}


def _as_torch(values: Any) -> torch.Tensor:
    """Return a torch tensor that is bitwise identical."""
    import torch

    if values.dtype == BF16:
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(values.copy())


def _as_numpy(tensor: torch.Tensor) -> Any:
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BF16)
    return tensor.numpy()


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_torch_tensors_come_back_as_torch_tensors(logits_dtype: Any, dtype: Any, inplace: bool) -> None:
    import torch

    logits, targets = normal_batch(11, 100)
    logits = logits.astype(logits_dtype)
    expected_loss, expected_lse = forward(logits, targets, dtype=as_nl(dtype), lse_dtype=as_nl(FP32), **OPTIONS)
    inputs, given_targets = _as_torch(logits), _as_torch(targets)
    loss, lse = forward(inputs, given_targets, dtype=as_nl(dtype), lse_dtype=as_nl(FP32), **OPTIONS)
    assert isinstance(loss, torch.Tensor) and isinstance(lse, torch.Tensor)
    assert same_bits(_as_numpy(loss), expected_loss) and same_bits(_as_numpy(lse), expected_lse)

    expected = backward(logits.copy(), targets, expected_lse, dtype=as_nl(dtype), inplace=inplace, **OPTIONS)
    gradient = backward(inputs, given_targets, lse, dtype=as_nl(dtype), inplace=inplace, **OPTIONS)
    assert isinstance(gradient, torch.Tensor)
    assert same_bits(_as_numpy(gradient), expected)
    assert (gradient is inputs) == inplace
    assert inplace or same_bits(_as_numpy(inputs), logits)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_float32_results_equal_autograd(reduction: str) -> None:
    import torch
    import torch.nn.functional as F

    logits, targets = (_as_torch(values) for values in normal_batch(16, 1000))
    x = logits.clone().requires_grad_()
    expected_loss = F.cross_entropy(x, targets.long(), reduction="none")
    F.cross_entropy(x, targets.long(), reduction=reduction).backward()

    options = {"cores": 2, "chunk_size": 300, "dtype": as_nl(FP32)}
    loss, lse = forward(logits, targets, **options)
    gradient = backward(logits, targets, lse, reduction=reduction, **options)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(lse, torch.logsumexp(x, 1).detach(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gradient, x.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="arrays that come by DLPack may be read-only")
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_memory_that_was_taken_can_still_be_resized(dtype: str) -> None:
    """FSDP frees the weights that it has gathered, and gathers them again, by the size of their storage."""
    import torch

    logits = torch.randn(11, 100).to(named_type(dtype))
    forward(logits, torch.zeros(11, dtype=torch.int32), dtype=as_nl(FP32), lse_dtype=as_nl(FP32), **OPTIONS)
    assert logits.untyped_storage().resizable()
