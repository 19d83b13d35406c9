# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.tensors.tensor``: what a tensor says of its layout, and its static views, against numpy's views.

Also the partitions in which a view lies. Views that split and merge dimensions are in ``test_reshaped_views.py``, those
with a dynamic index in ``test_indexed_views_dynamic.py`` and ``isa/test_indirection.py``, the access pattern ``ap`` in
``test_reshaped_views_access_patterns.py``; what a tensor prints is in ``test_tensor_operators.py``.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.tensors.tensor import NkiTensor
from nkilib.simulator.tensors.view import (
    allowed_starts,
    assumed_partition,
    partition_in_storage,
    placed_partition,
    possible_starts,
)
from nkilib.simulator.terms.argument_checks import DIVISION
from nkilib.simulator.terms.dtypes import as_dtype

from ..frame import counted, empty, in_hbm, in_sbuf, indices, refused, run, tensor_of
from ..kernels import execute, store, tile
from ..refused_views import Attempt, Constraint, TensorOf

HBM = "tensor [4, 6] float32 in private_hbm"
SBUF = "tensor [4, 6] float32 in sbuf"
CUBE = "tensor [4, 2, 6] float32 in sbuf"


def plain(*shape: int) -> NkiTensor:
    return in_hbm(counted(*shape))


def counted_tile(*shape: int) -> NkiTensor:
    return in_sbuf(counted(*shape))


# -- questions -------------------------------------------------------------------------------------------------


def test_the_tensor_of_the_language_guide() -> None:
    t = empty(128, 64, buffer=nl.sbuf)
    assert (t.shape, t.strides, t.offset, t.dtype, t.buffer) == ((128, 64), (64, 1), 0, nl.float32, nl.sbuf)
    assert (t.ndim, t.size, t.name) == (2, 128 * 64, "")
    assert t.get_pattern() == [[64, 128], [1, 64]]
    assert not t.is_indirect()


def test_a_tensor_can_be_bound_to_a_storage() -> None:
    storage = Storage((2, 3), nl.int32, nl.psum, "")
    t = NkiTensor((2, 3), "int32", storage, "psum", "sums")
    assert t.storage is storage and t.buffer is nl.psum and t.dtype is nl.int32
    assert NkiTensor((2, 3), nl.int32, None).buffer is nl.sbuf
    assert repr(t) == "tensor 'sums' [2, 3] int32 in psum"


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (counted_tile(4, 2, 6), True),
        (counted_tile(4, 2, 6)[1:3], True),
        (counted_tile(4, 2, 6)[:, :, 1:3], False),
        (counted_tile(4, 2, 6)[:, 1], True),
        (counted_tile(4, 2, 6).permute((0, 2, 1)), False),
        (plain(4, 2, 6), True),
        (plain(4, 2, 6)[1:3], True),
        (plain(4, 2, 6)[::2], False),
        (plain(4, 2, 6)[:, 1], False),
        (plain(4, 2, 6).reshape((8, 6)), True),
        (plain(1, 6).permute((1, 0)), True),
    ],
)
def test_contiguous_is_dense_and_on_chip_dense_in_each_partition(view: NkiTensor, expected: bool) -> None:
    assert view.is_contiguous() is expected


def test_views_share_storage() -> None:
    array = counted(4, 6)
    t = in_hbm(array)
    t[1:3, ::2].permute((1, 0)).array[...] = -1
    assert (array[1:3, ::2] == -1).all() and (array == -1).sum() == 6


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nl.ndarray((4, 6), nl.float32)[0:1, 2:3], "tensor [1, 1] float32 in sbuf"),
        (lambda: nl.add(nl.zeros((4, 6), nl.float32), 1), "tensor [4, 6] float32 in sbuf"),
    ],
    ids=["part", "result"],
)
def test_a_value_has_no_reference_value(make: Any, name: str) -> None:
    expected = (
        f"{name}: the values of a tensor are not known while the kernel is being built; "
        "nisa.register_load brings one into a register, and 'is not None' asks whether there is a tensor"
    )
    assert refused(NkiValidationError, lambda: run(lambda: bool(make()))).endswith(expected)


def test_a_tensor_is_true_where_an_optional_argument_may_be_none() -> None:
    """Whatever it holds: `if bias:` asks whether a bias was passed, in kernels of AWS too, also of one in SBUF."""
    assert plain(4, 6)
    assert in_hbm(np.zeros((1, 1), np.float32))
    assert run(lambda: bool(nl.ndarray((1, 4), nl.uint32, name="index")) and bool(nl.zeros((1, 1), nl.float32))) is True


# -- assignment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", [nl.sbuf, nl.psum])
def test_assignment_copies_a_tile_into_part_of_another(region: nl.MemoryRegion) -> None:
    """The copy casts, as one tensor_copy that reads its source before it writes."""
    x = counted(4, 6)

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        source = nl.load(x)
        tile = nl.ndarray((4, 2, 6), nl.float16, buffer=region)
        tile[...] = nl.zeros((4, 2, 6), nl.float32)
        tile[0:4, 1, 0:6] = source
        tile[:, 0, 1:4] = source[:, ::2]
        source[:, 0:4] = source[:, 2:6]
        tile[0:1, 0, 0] = source[0:1, 0]
        result = nl.ndarray((4, 2, 6), nl.float16, buffer=nl.shared_hbm)
        nl.store(result, value=nl.copy(tile))
        return result

    expected = np.zeros((4, 2, 6), np.float16)
    expected[:, 1] = x
    expected[:, 0, 1:4] = x[:, ::2]
    expected[0, 0, 0] = x[0, 2]
    np.testing.assert_array_equal(nki.jit(kernel)(x), expected)


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        (
            lambda: plain(4, 6),
            0,
            f"NkiTensor.__setitem__: only a tile in sbuf or psum can be assigned to, got {HBM}; write to HBM with "
            f"nisa.dma_copy or nl.store",
        ),
        (
            lambda: nl.ndarray((4, 6), nl.float32),
            1.0,
            "NkiTensor.__setitem__: tensor [4, 2] float32 in sbuf takes a tile of that shape in sbuf or psum, got 1.0; "
            "nisa.memset sets all elements, nisa.dma_copy reads from HBM",
        ),
        (
            lambda: nl.ndarray((4, 6), nl.float32),
            plain(4, 2),
            f"NkiTensor.__setitem__: tensor [4, 2] float32 in sbuf takes a tile of that shape in sbuf or psum, got "
            f"{plain(4, 2)}; nisa.memset sets all elements, nisa.dma_copy reads from HBM",
        ),
    ],
    ids=["a tensor in HBM", "a number", "a value in HBM"],
)
def test_assignment_is_between_tiles(target: Any, value: Any, message: str) -> None:
    def kernel(x: nl.NkiTensor) -> None:
        target()[:, 0:2] = value

    assert refused(NkiValidationError, lambda: nki.jit(kernel)(counted(4, 6))).endswith(message)


def test_assignment_wants_a_tile_of_the_same_shape() -> None:
    """NKI's documentation broadcasts nothing here, and a numpy habit should not pass for a copy."""

    def kernel(x: nl.NkiTensor) -> None:
        nl.ndarray((4, 6), nl.float32)[:, 0:2] = nl.load(x)[:, 0:1]

    message = refused(NkiValidationError, lambda: nki.jit(kernel)(counted(4, 6)))
    assert "takes a tile of that shape in sbuf or psum, got tensor [4, 1] float32 in sbuf" in message


# -- slice, select ---------------------------------------------------------------------------------------------


@given(st.data())
def test_slice_is_numpys(data: st.DataObject) -> None:
    array = counted(4, 5, 6)
    dim = data.draw(st.integers(0, 2))
    start = data.draw(st.integers(0, array.shape[dim] - 1))
    end = data.draw(st.integers(start + 1, array.shape[dim]))
    step = data.draw(st.integers(1, 7))
    key = (slice(None),) * dim + (slice(start, end, step),)
    for make in (in_hbm, in_sbuf):
        np.testing.assert_array_equal(make(array).slice(dim, start, end, step).array, array[key], strict=True)


def test_an_empty_slice_is_accepted() -> None:
    assert plain(4, 6).slice(0, 4, 4).shape == (0, 6)
    assert plain(4, 6).slice(0, 4, 4).slice(1, 5, 6).array.shape == (0, 1)
    assert plain(4, 6).slice(0, 4, 4).reshape((3, 0, 2)).array.shape == (3, 0, 2)


PLAIN = TensorOf(lambda: plain(4, 6))
GATHERED = TensorOf(lambda: plain(4, 6).vector_select(0, indices(1, 2)))
ON_CHIP = TensorOf(lambda: counted_tile(4, 6))
SHORTS = TensorOf(lambda: in_hbm(counted(4, 8, dtype=np.int16)))


def _slice(dim: int, start: int, end: int, step: int = 1) -> Attempt:
    """A slice that is refused."""
    required = f"0 <= start < end <= {(4, 6)[dim]} and step >= 1 are required in dimension {dim} of {HBM}"
    attempt = PLAIN.slice(dim, start, end, step)
    return attempt.says(f"{required}, got start={start}, end={end}, step={step}", error=OutOfRangeError)


@pytest.mark.parametrize(
    "constraint",
    [
        _slice(0, -1, 3).fixed(0, 0, 3),
        _slice(1, 2, 7).fixed(1, 2, 6),
        _slice(1, 3, 2).fixed(1, 2, 3),
        _slice(1, 2, 6, 0).fixed(1, 2, 6, 1),
        PLAIN.slice(2, 0, 1).says(f"dim must be in [0, 2) of {HBM}, got 2", error=OutOfRangeError).fixed(1, 0, 1),
        GATHERED.slice(0, 0, 1)
        .refused_with("tensor [2, 6] float32 in private_hbm: dimension 0 is indirect and cannot be indexed")
        .fixed(1, 0, 1),
    ],
)
def test_constraints_of_slice(constraint: Constraint) -> None:
    constraint.check()


@pytest.mark.parametrize(
    ("make", "dim", "index", "expected"),
    [
        (plain, 0, 3, np.s_[3]),
        (plain, 1, 1, np.s_[:, 1]),
        (plain, 2, 5, np.s_[:, :, 5]),
        (counted_tile, 0, 3, np.s_[3:4]),
        (counted_tile, 1, 0, np.s_[:, 0]),
        (counted_tile, 2, np.int32(5), np.s_[:, :, 5]),
    ],
)
def test_a_static_select_is_an_integer_index(make: Any, dim: int, index: int, expected: Any) -> None:
    array = counted(4, 2, 6)
    np.testing.assert_array_equal(make(4, 2, 6).select(dim, index).array, array[expected], strict=True)


def test_a_static_select_keeps_two_dimensions_on_chip_and_one_in_hbm() -> None:
    assert counted_tile(4, 6).select(1, 2).array.tolist() == [[2], [8], [14], [20]]
    assert plain(4, 6).select(0, 1).select(0, 5).array.tolist() == [11]


@pytest.mark.parametrize(
    "constraint",
    [
        PLAIN.select(1, 6)
        .says(f"index must be in [0, 6) in dimension 1 of {HBM}, got 6", error=OutOfRangeError)
        .fixed(1, 5),
        ON_CHIP.select(0, -1)
        .says(f"index must be in [0, 4) in dimension 0 of {SBUF}, got -1", error=OutOfRangeError)
        .fixed(0, 3),
        PLAIN.select(-3, 0).says(f"dim must be in [0, 2) of {HBM}, got -3", error=OutOfRangeError).fixed(-2, 0),
        PLAIN.select(0, 1.0)
        .refused_with(f"{HBM} can be indexed with integers, slices, ... and nl.ds, got 1.0 for dimension 0{DIVISION}")
        .fixed(0, 1),
        GATHERED.select(0, 1)
        .refused_with("tensor [2, 6] float32 in private_hbm: dimension 0 is indirect and cannot be indexed")
        .fixed(1, 1),
    ],
)
def test_constraints_of_a_static_select(constraint: Constraint) -> None:
    constraint.check()


# -- reshape, permute, broadcast -------------------------------------------------------------------------------


@given(st.sampled_from([(24,), (4, 6), (6, 4), (2, 12), (3, 1, 8), (2, 2, 3, 2), (1, 24, 1)]))
def test_reshape_in_hbm_is_numpys(shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(plain(4, 6).reshape(shape).array, counted(*shape), strict=True)
    part = counted(4, 8)[:, :6]
    view = plain(4, 8)[:, :6]
    reshaped = part.reshape(shape)
    if np.shares_memory(part, reshaped):
        np.testing.assert_array_equal(view.reshape(shape).array, reshaped, strict=True)
    else:
        message = f"NkiTensor.reshape: {HBM} with strides (8, 1) cannot become {list(shape)} without a copy"
        assert refused(NkiValidationError, lambda: view.reshape(shape)) == message


def test_reshape_on_chip_and_after_a_vector_select_keeps_the_first_dimension() -> None:
    array = counted(4, 2, 6)
    np.testing.assert_array_equal(in_sbuf(array).reshape((4, 12)).array, array.reshape(4, 12), strict=True)
    window = in_sbuf(array)[1:3].reshape((2, 3, 4))
    np.testing.assert_array_equal(window.array, array[1:3].reshape(2, 3, 4), strict=True)
    assert in_hbm(array).vector_select(0, indices(1, 1, 2)).reshape((3, 4, 3)).shape == (3, 4, 3)


@pytest.mark.parametrize(
    "constraint",
    [
        PLAIN.reshape((5, 5)).says(f"{HBM} has 24 elements, [5, 5] has 25").fixed((8, 3)),
        PLAIN.reshape((-4, -6))
        .says(
            f"sizes must not be negative, got [-4, -6] for {HBM}; reshape_dim takes one -1, for what the other "
            "sizes leave"
        )
        .fixed((4, 6)),
        PLAIN.reshape((4, -1))
        .says(
            f"sizes must not be negative, got [4, -1] for {HBM}; reshape_dim takes one -1, for what the other "
            "sizes leave"
        )
        .fixed((4, 6)),
        ON_CHIP.reshape((8, 3))
        .says(f"dimension 0 of {SBUF} counts partitions and must stay 4, got [8, 3]")
        .fixed((4, 2, 3)),
        TensorOf(lambda: in_sbuf(counted(4, 1)))
        .reshape((4,))
        .says(
            "an on-chip tensor has a partition and at least one free dimension, got [4] for tensor [4, 1] "
            "float32 in sbuf"
        )
        .fixed((4, 1, 1)),
        GATHERED.reshape((12, 1))
        .says("dimension 0 of tensor [2, 6] float32 in private_hbm counts partitions and must stay 2, got [12, 1]")
        .fixed((2, 3, 2)),
        TensorOf(lambda: counted_tile(4, 2, 6).permute((0, 2, 1)))
        .reshape((4, 12))
        .says("tensor [4, 6, 2] float32 in sbuf with strides (12, 1, 6) cannot become [4, 12] without a copy")
        .instead(lambda: counted_tile(4, 2, 6).reshape((4, 12))),
    ],
)
def test_constraints_of_reshape(constraint: Constraint) -> None:
    constraint.check()


@given(st.permutations(range(3)))
def test_permute_is_numpys_transpose(dims: list[int]) -> None:
    array = counted(4, 2, 6)
    np.testing.assert_array_equal(in_hbm(array).permute(tuple(dims)).array, array.transpose(dims), strict=True)


def test_permute_on_chip_and_after_a_vector_select_reorders_the_rest() -> None:
    array = counted(4, 2, 6)
    np.testing.assert_array_equal(in_sbuf(array).permute((0, 2, 1)).array, array.transpose(0, 2, 1), strict=True)
    assert in_hbm(array).vector_select(0, indices(1, 1, 2)).permute((0, 2, 1)).shape == (3, 6, 2)


@pytest.mark.parametrize(
    "constraint",
    [
        PLAIN.permute((0, 2)).says("dims must be a permutation of 0..1, got (0, 2)").fixed((1, 0)),
        PLAIN.permute((0, 0)).says("dims must be a permutation of 0..1, got (0, 0)").fixed((0, 1)),
        TensorOf(lambda: counted_tile(4, 2, 6))
        .permute((1, 0, 2))
        .says(f"dimension 0 of {CUBE} must stay first, got (1, 0, 2)")
        .fixed((0, 2, 1)),
        GATHERED.permute((1, 0))
        .says("dimension 0 of tensor [2, 6] float32 in private_hbm must stay first, got (1, 0)")
        .fixed((0, 1)),
    ],
)
def test_constraints_of_permute(constraint: Constraint) -> None:
    constraint.check()


def test_broadcast_is_numpys() -> None:
    array = counted(4, 1, 6)
    np.testing.assert_array_equal(in_sbuf(array).broadcast(1, 3).array, np.broadcast_to(array, (4, 3, 6)), strict=True)
    row = counted(1, 6)
    np.testing.assert_array_equal(in_hbm(row).broadcast(0, 4).array, np.broadcast_to(row, (4, 6)), strict=True)
    assert in_sbuf(array).broadcast(1, 3).get_pattern() == [[6, 4], [0, 3], [1, 6]]


@pytest.mark.parametrize(
    "constraint",
    [
        PLAIN.broadcast(0, 2)
        .says(f"dimension 0 of {HBM} must have size 1 and not be the partition dimension")
        .instead(lambda: plain(1, 6).broadcast(0, 2)),
        TensorOf(lambda: counted_tile(1, 6))
        .broadcast(0, 2)
        .says("dimension 0 of tensor [1, 6] float32 in sbuf must have size 1 and not be the partition dimension")
        .instead(lambda: counted_tile(6, 1).broadcast(1, 2)),
        TensorOf(lambda: counted_tile(6, 1)).broadcast(1, 0).says("size must be at least 1, got 0").fixed(1, 1),
        TensorOf(lambda: counted_tile(6, 1))
        .broadcast(2, 2)
        .says("dim must be in [0, 2) of tensor [6, 1] float32 in sbuf, got 2", error=OutOfRangeError)
        .fixed(1, 2),
        TensorOf(lambda: plain(4, 1).vector_select(0, indices(2)))
        .broadcast(0, 2)
        .says("dimension 0 of tensor [1, 1] float32 in private_hbm is indirect")
        .fixed(1, 2),
    ],
)
def test_constraints_of_broadcast(constraint: Constraint) -> None:
    constraint.check()


# -- view ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (np.float32, np.uint8),
        (np.float32, np.int32),
        (np.int32, ml_dtypes.bfloat16),
        (ml_dtypes.bfloat16, np.float32),
        (np.uint8, np.float16),
        (np.int8, ml_dtypes.float8_e4m3),
    ],
)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.private_hbm])
def test_view_is_numpys(old: Any, new: Any, buffer: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 32, (4, 64), dtype=np.uint8)  # no NaN, which equals nothing
    array = bits.view(old)
    t = tensor_of(array, buffer)
    np.testing.assert_array_equal(t.view(as_dtype(new)).array, array.view(new), strict=True)
    part = t[1:3, 4:12].view(as_dtype(new))
    np.testing.assert_array_equal(part.array, array[1:3, 4:12].view(new), strict=True)
    assert part.dtype == as_dtype(new)
    assert part.reinterpret_cast(t.dtype).layout == t[1:3, 4:12].layout


def test_a_last_dimension_of_one_element_can_be_split() -> None:
    array = counted(4, 6)
    halves = in_hbm(array)[:, 2:3].view(nl.uint16)
    np.testing.assert_array_equal(halves.array, array.view(np.uint16)[:, 4:6], strict=True)


@pytest.mark.parametrize(
    "constraint",
    [
        PLAIN[:, ::2]
        .view(nl.uint8)
        .says("the last dimension of tensor [4, 3] float32 in private_hbm must be dense, got strides (6, 2)")
        .instead(lambda: plain(4, 6)[::2].view(nl.uint8)),
        TensorOf(lambda: plain(4, 6).permute((1, 0)))
        .view(nl.uint8)
        .says("the last dimension of tensor [6, 4] float32 in private_hbm must be dense, got strides (1, 6)")
        .instead(lambda: plain(4, 6).view(nl.uint8).permute((1, 0))),
        PLAIN[0:1, ::2]
        .view(nl.uint8)
        .says("the last dimension of tensor [1, 3] float32 in private_hbm must be dense, got strides (6, 2)")
        .instead(lambda: plain(4, 6)[0:1].view(nl.uint8)),
        TensorOf(lambda: in_hbm(np.array(3, np.float32)))
        .view(nl.uint8)
        .says("the last dimension of tensor [] float32 in private_hbm must be dense, got strides ()")
        .fixed(nl.int32),
        TensorOf(lambda: in_hbm(counted(4, 7, dtype=np.int16)))
        .view(nl.float32)
        .says(
            "the 14 bytes of the last dimension of tensor [4, 7] int16 in private_hbm and the strides before it "
            "must be multiples of the 4 bytes of float32"
        )
        .instead(lambda: in_hbm(counted(4, 6, dtype=np.int16)).view(nl.float32)),
        TensorOf(lambda: in_hbm(counted(4, 7, dtype=np.int16))[:, 0:6])
        .view(nl.float32)
        .says(
            "the 12 bytes of the last dimension of tensor [4, 6] int16 in private_hbm and the strides before it "
            "must be multiples of the 4 bytes of float32"
        )
        .instead(lambda: in_hbm(counted(4, 8, dtype=np.int16))[:, 0:6].view(nl.float32)),
        SHORTS[:, 1:7]
        .view(nl.float32)
        .says("tensor [4, 6] int16 in private_hbm starts at byte 2, which is no multiple of the 4 bytes of float32")
        .instead(lambda: in_hbm(counted(4, 8, dtype=np.int16))[:, 2:8].view(nl.float32)),
        TensorOf(lambda: plain(4, 6).vector_select(0, indices(1)))
        .view(nl.int32)
        .says("tensor [1, 6] float32 in private_hbm is indirect")
        .instead(lambda: plain(4, 6).view(nl.int32).vector_select(0, indices(1))),
        TensorOf(lambda: plain(4, 6).select(0, indices(1)))
        .view(nl.int32)
        .says("tensor [6] float32 in private_hbm is indirect")
        .instead(lambda: plain(4, 6).view(nl.int32).select(0, indices(1))),
    ],
)
def test_constraints_of_view(constraint: Constraint) -> None:
    constraint.check()


def test_bits_of_a_type_stored_as_float32_cannot_be_read() -> None:
    wide = Storage((4, 6), nl.bfloat16, nl.sbuf, "", precise_fp=False)
    t = NkiTensor((4, 6), nl.bfloat16, wide)
    message = "tensor [4, 6] bfloat16 in sbuf is held in float32 because NKI_PRECISE_FP=0; its bits cannot be read as"
    assert refused(NkiValidationError, lambda: t.view(nl.int16)) == f"NkiTensor.view: {message} int16"
    pattern = [[3, 4], [1, 3]]
    assert refused(NkiValidationError, lambda: t.ap(pattern, dtype=nl.int32)) == f"NkiTensor.ap: {message} int32"
    assert t.view(nl.bfloat16).array.dtype == np.float32
    assert empty(4, 6, dtype=nl.bfloat16).view(nl.int16).array.dtype == np.int16


def test_views_compose() -> None:
    array = counted(128, 4, 16)
    u = in_sbuf(array)[0:64, :, :].permute((0, 2, 1))[:, 0, :]
    np.testing.assert_array_equal(u.array, array[:64].transpose(0, 2, 1)[:, 0], strict=True)


COMMAND = nisa.reduce_cmd


@pytest.mark.parametrize(
    ("partitions", "starts"),
    [(1, (0, 32, 64, 96)), (32, (0, 32, 64, 96)), (33, (0, 64)), (64, (0, 64)), (65, (0,)), (128, (0,))],
)
def test_where_an_access_may_start(partitions: int, starts: tuple[int, ...]) -> None:
    assert allowed_starts(partitions) == starts


def test_a_view_of_a_tensor_that_the_compiler_places() -> None:
    def kernel() -> None:
        tensor = nl.ndarray((64, 4), nl.float32)
        for view, start in ((tensor, 0), (tensor[32:64, 1:3], 32), (tensor.view(nl.int8)[32:48], 32)):
            assert partition_in_storage(view) == assumed_partition(view) == start
            assert placed_partition(view) is None
            assert possible_starts(view) == (start, 64 + start)

    execute(kernel)


def test_a_view_of_a_tensor_that_the_kernel_places() -> None:
    def kernel() -> None:
        tensor = nl.ndarray((64, 4), nl.float32, address=(64, 0))
        view = tensor[32:64, 1:3]
        assert partition_in_storage(view) == 32
        assert assumed_partition(view) == placed_partition(view) == 96
        assert possible_starts(view) == (96,)

    execute(kernel)


@pytest.mark.parametrize("reduces", ["scalar", "vector"])
def test_placed_tiles_use_the_registers_of_their_partitions(reduces: str) -> None:
    """Sums of a tile of ones and of one of tens, in other partitions: the second leaves the first one's alone."""

    def reduce(data: Any, command: Any, result: Any = None) -> None:
        out = nl.ndarray(data.shape, nl.float32)
        if reduces == "scalar":
            nisa.activation(out, nl.copy, data, reduce_op=nl.add, reduce_res=result, reduce_cmd=command)
        else:
            nisa.tensor_scalar_reduce(out, data, nl.add, 0.0, nl.add, result, reduce_cmd=command)

    def kernel() -> Any:
        ones = nl.ndarray((32, 2), nl.float32, address=(0, 0))
        tens = nl.ndarray((32, 2), nl.float32, address=(32, 0))
        nisa.memset(ones, 1)
        nisa.memset(tens, 10)
        reduce(ones, COMMAND.reset_reduce)
        reduce(tens, COMMAND.reset_reduce)
        results = [nl.ndarray((32, 1), nl.float32) for _ in range(2)]
        reduce(ones, COMMAND.reduce, results[0])
        reduce(tens, COMMAND.reduce, results[1])
        return [store(result) for result in results]

    first, second = execute(kernel)
    assert (first == 2 + 2).all()
    assert (second == 20 + 20).all()


def test_tensor_indirection_scatters_where_its_base_is() -> None:
    """Element i of partitions 32 to 47 goes to column 15 - i; the others keep their sevens."""

    def kernel() -> Any:
        target, offsets = tile(64, 16, value=7), nl.ndarray((64, 1), nl.uint16)
        nisa.iota(offsets[32:48], [[0, 1]], offset=15, channel_multiplier=-1)
        view = target[32:48].indirect(offsets[32:48], num_elem=16)
        source = nl.ndarray((16, 16), nl.float32)
        nisa.iota(source, [[1, 16]])
        nisa.tensor_copy(view, source)
        return store(target)

    result = execute(kernel, "trn3")
    assert (result[:32] == 7).all() and (result[48:] == 7).all()
    assert (result[32:48] == np.arange(15, -1, -1)).all()


def test_tensor_indirection_uses_the_registers_of_the_partitions_that_it_reads() -> None:
    """Cumulative sums of four ones, continued from 4 in partitions 0 to 31 and from 132 in the others."""

    def kernel() -> Any:
        data, offsets = tile(64, 4, value=1), tile(64, 1, dtype=nl.uint16)
        for low in (0, 32):
            nisa.tensor_scalar_cumulative(tile(32, 4), data[low : low + 32], nl.add, nl.add, float(low))
        results = [tile(32, 4), tile(32, 4)]
        for low, result in zip((0, 32), results, strict=True):
            view = data[low : low + 32].indirect(offsets[low : low + 32], num_elem=4)
            nisa.tensor_scalar_cumulative(result, view, nl.add, nl.add, 0.0, reduce_cmd=COMMAND.reduce)
        return [store(result) for result in results]

    first, second = execute(kernel, "trn3")
    assert (first == [5, 6, 7, 8]).all()  # 4 ones, and one more each
    assert (second == [133, 134, 135, 136]).all()  # 4 * (1 + 32) = 132
