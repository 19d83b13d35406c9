# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values of ``terms``: types, memory regions and layouts, and what is no integer where one belongs."""

from __future__ import annotations

import copy
import itertools
import pickle
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from nkilib.nki import nl
from nkilib.simulator import ArgumentTypeError, NkiValidationError
from nkilib.simulator.tensors.device_integers import VirtualRegister
from nkilib.simulator.terms import dtypes
from nkilib.simulator.terms.argument_checks import as_integer, as_integers, is_integer
from nkilib.simulator.terms.dtypes import ALL_DTYPES, DType, as_dtype
from nkilib.simulator.terms.enums import as_region
from nkilib.simulator.terms.errors import RegisterTypeError
from nkilib.simulator.terms.layout import Layout, dense, extent, is_dense, reshape_strides, row_major_strides
from tests.torch_types import named_type

from ..frame import counted, in_hbm, refused

# Name, bits and numpy type of every type in the table "Supported Data Types by NKI".
PLAIN = [
    ("uint8", 8, np.uint8, "uint"),
    ("int8", 8, np.int8, "int"),
    ("uint16", 16, np.uint16, "uint"),
    ("int16", 16, np.int16, "int"),
    ("uint32", 32, np.uint32, "uint"),
    ("int32", 32, np.int32, "int"),
    ("int64", 64, np.int64, "int"),
    ("float8_e4m3", 8, ml_dtypes.float8_e4m3, "float"),
    ("float8_e5m2", 8, ml_dtypes.float8_e5m2, "float"),
    ("float8_e4m3fn", 8, ml_dtypes.float8_e4m3fn, "float"),
    ("float8_e8m0fnu", 8, ml_dtypes.float8_e8m0fnu, "float"),
    ("float16", 16, np.float16, "float"),
    ("bfloat16", 16, ml_dtypes.bfloat16, "float"),
    ("tfloat32", 32, np.float32, "float"),
    ("float32", 32, np.float32, "float"),
    ("bool", 8, np.uint8, "bool"),
]
PACKED = [
    ("float8_e5m2_x4", 32, np.uint32),
    ("float8_e4m3fn_x4", 32, np.uint32),
    ("float4_e2m1fn_x4", 16, np.uint16),
]


@pytest.mark.parametrize(("name", "bits", "numpy_type", "kind"), PLAIN, ids=[row[0] for row in PLAIN])
def test_types_have_the_documented_widths(name: str, bits: int, numpy_type: Any, kind: str) -> None:
    dtype = as_dtype(name)
    assert (dtype.itemsize * 8, dtype.numpy, dtype.kind) == (bits, np.dtype(numpy_type), kind)
    assert dtype.is_float == (kind == "float") and not dtype.is_packed
    assert dtype.is_integer == (kind in ("int", "uint", "bool"))


def test_the_tables_name_every_type() -> None:
    assert sorted(ALL_DTYPES) == sorted([name for name, *_ in PLAIN] + [name for name, *_ in PACKED])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_type_is_a_string(dtype: DType) -> None:
    name = str(dtype)
    assert dtype == name and hash(dtype) == hash(name) and {name: 1}[dtype] == 1
    assert f"{dtype} {dtype!r}" == f"{name} {name}"


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_copied_type_is_the_same_object(dtype: DType) -> None:
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy([dtype])[0] is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (nl.bfloat16, nl.bfloat16),
        ("bfloat16", nl.bfloat16),
        ("bool_", nl.bool_),
        ("tfloat32", nl.tfloat32),
        (np.float32, nl.float32),
        (np.dtype(np.uint16), nl.uint16),
        (np.dtype(">i4"), nl.int32),
        (np.bool_, nl.bool_),
        (ml_dtypes.bfloat16, nl.bfloat16),
        (np.dtype(ml_dtypes.float8_e5m2), nl.float8_e5m2),
        ("torch.bfloat16", nl.bfloat16),
        ("torch.float32", nl.float32),
        ("torch.bool", nl.bool_),
    ],
    ids=str,
)
def test_as_dtype_knows_names_and_the_types_of_numpy_and_torch(value: Any, expected: DType) -> None:
    assert as_dtype(named_type(value)) is expected


@pytest.mark.parametrize("value", [np.float64, "uint64", float, int, None, 3, "torch.float64", "float", [1]], ids=str)
def test_what_is_no_type_of_nki_is_refused(value: Any) -> None:
    value = named_type(value)
    expected = f"dtype must be an NKI data type such as nl.float32 or nl.bfloat16, got {value!r}"
    assert refused(ArgumentTypeError, lambda: as_dtype(value)) == expected


@pytest.mark.parametrize(("name", "bits", "numpy_type"), PACKED)
def test_packed_types_are_words_and_neither_floats_nor_integers(name: str, bits: int, numpy_type: Any) -> None:
    dtype = as_dtype(name)
    assert dtype is getattr(nl, name)
    assert (dtype.itemsize * 8, dtype.numpy, dtype.kind) == (bits, np.dtype(numpy_type), "packed")
    assert dtype.is_packed and not dtype.is_float and not dtype.is_integer


def test_low_precision_types_are_those_of_the_precise_mode() -> None:
    assert {"bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"} == dtypes.LOW_PRECISION


REGIONS = [nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm]


@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_a_region_is_known_by_itself_and_by_name(region: Any) -> None:
    assert as_region(region) is region
    assert as_region(str(region)) is region
    assert nl.MemoryRegion(str(region)) is region


def test_hbm_is_another_name_of_private_hbm() -> None:
    assert nl.hbm is nl.private_hbm
    assert as_region("hbm") is nl.private_hbm


@pytest.mark.parametrize(
    ("question", "members"),
    [
        (nl.is_sbuf, ["sbuf"]),
        (nl.is_psum, ["psum"]),
        (nl.is_on_chip, ["sbuf", "psum"]),
        (nl.is_hbm, ["private_hbm", "shared_hbm"]),
    ],
)
def test_the_questions(question: Any, members: list[str]) -> None:
    assert [str(region) for region in REGIONS if question(region)] == members
    assert [str(region) for region in REGIONS if question(str(region))] == members


@pytest.mark.parametrize("buffer", ["dram", "SBUF", None, 1, ["sbuf"]], ids=repr)
def test_what_is_no_region_is_refused(buffer: Any) -> None:
    message = f"buffer must be nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm, got {buffer!r}"
    assert refused(ArgumentTypeError, lambda: as_region(buffer)) == message
    assert refused(ArgumentTypeError, lambda: nl.is_sbuf(buffer)) == message


SIZES = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@st.composite
def strided_shapes(draw: st.DrawFn, sizes: st.SearchStrategy[tuple[int, ...]] = SIZES) -> tuple[Any, Any]:
    """A shape and strides, of which many dimensions are dense relative to the next one, so that they can be merged."""
    shape = draw(sizes)
    strides: list[int] = []
    step = draw(st.integers(0, 3))
    for size in reversed(shape):
        strides.append(step if draw(st.integers(0, 3)) else draw(st.integers(-9, 9)))
        step = strides[-1] * size
    return shape, tuple(reversed(strides))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """A shape, its strides, and another shape of as many elements."""
    shape, strides = draw(strided_shapes())
    factors = [prime for size in shape for prime in {2: [2], 3: [3], 4: [2, 2]}.get(size, [])]
    factors = draw(st.permutations(factors)) if draw(st.booleans()) else factors
    groups = draw(st.lists(st.booleans(), min_size=len(factors), max_size=len(factors)))
    new_shape: list[int] = []
    for factor, starts_anew in zip(factors, groups, strict=True):
        if starts_anew or not new_shape:
            new_shape.append(factor)
        else:
            new_shape[-1] *= factor
    for position in draw(st.lists(st.integers(0, 4), max_size=2)):
        new_shape.insert(position, 1)
    return shape, strides, tuple(new_shape)


def elements(shape: Any, strides: Any) -> Any:
    """A numpy array with that layout whose elements are their positions, counted from the first element."""
    reach = sum(abs(stride) * (size - 1) for stride, size in zip(strides, shape, strict=True))
    storage = np.arange(-reach, reach + 1, dtype=np.int64)
    width = storage.itemsize
    return as_strided(storage[reach:], shape, [stride * width for stride in strides])


@given(reshapes())
def test_reshape_strides_is_numpys_reshape_and_none_where_numpy_copies(case: tuple[Any, Any, Any]) -> None:
    shape, strides, new_shape = case
    array = elements(shape, strides)
    reshaped = array.reshape(new_shape)
    result = reshape_strides(shape, strides, new_shape)
    assert (result is None) == (not np.may_share_memory(array, reshaped))
    if result is not None:
        np.testing.assert_array_equal(elements(new_shape, result), reshaped)


def test_reshape_strides_by_hand() -> None:
    assert reshape_strides((4, 6), (6, 1), (2, 12)) == (12, 1)
    assert reshape_strides((4, 6), (12, 1), (2, 2, 3, 2)) == (24, 12, 2, 1)
    assert reshape_strides((4, 6), (12, 1), (24,)) is None
    assert reshape_strides((4, 6), (1, 4), (6, 4)) is None
    assert reshape_strides((2, 3), (0, 0), (6,)) == (0,)
    assert reshape_strides((4, 6), (6, 1), (5, 5)) is None


def test_an_empty_shape_can_take_any_empty_shape() -> None:
    assert reshape_strides((0, 7), (100, 3), (2, 0, 5)) == row_major_strides((2, 0, 5))


@given(strided_shapes(), st.integers(0, 100))
def test_extent_bounds_what_the_layout_touches(case: tuple[Any, Any], offset: int) -> None:
    shape, strides = case
    touched = [
        offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, shape))
    ]
    assert extent(Layout(shape, strides, offset)) == (min(touched), max(touched))


def test_extent_of_no_elements_is_empty() -> None:
    assert extent(Layout((3, 0), (5, 1), 40)) == (0, -1)


@given(strided_shapes())
def test_is_dense_is_numpys_c_contiguous(case: tuple[Any, Any]) -> None:
    shape, strides = case
    assert is_dense(shape, strides) == elements(shape, strides).flags.c_contiguous


@given(SIZES)
def test_a_dense_layout_has_numpys_strides(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, np.uint8)
    assert dense(shape) == Layout(shape, array.strides, 0)
    assert extent(dense(shape)) == (0, prod(shape) - 1)
    assert is_dense(shape, row_major_strides(shape))


TENSOR = "tensor [4, 6] float32 in private_hbm"
QUOTIENT = "; of two integers, / makes a float and // an integer"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, True), (np.int64(-3), True), (np.uint8(3), True), (True, False), (np.True_, False), (3.0, False)],
)
def test_integers_are_told_from_truth_values_and_floats(value: object, expected: bool) -> None:
    assert is_integer(value) is expected


def test_integers_of_any_kind() -> None:
    assert as_integer("size", np.int64(3)) == 3 and type(as_integer("size", np.int64(3))) is int
    assert as_integers("shape", [1, np.int32(2)]) == (1, 2) and as_integers("shape", range(3)) == (0, 1, 2)


def test_a_register_says_how_to_compute_with_it() -> None:
    for call in (lambda: as_integer("size", VirtualRegister(3)), lambda: as_integers("shape", (1, VirtualRegister(3)))):
        assert "Python cannot compute with VirtualRegister(3)" in refused(RegisterTypeError, call)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda t: t.reshape(24), "NkiTensor.reshape: shape must be a tuple of integers, got 24"),
        (
            lambda t: t.reshape((4, 12 / 2)),
            f"NkiTensor.reshape: shape must be a tuple of integers, got (4, 6.0){QUOTIENT}",
        ),
        (lambda t: t.reshape((4, 6.5)), "NkiTensor.reshape: shape must be a tuple of integers, got (4, 6.5)"),
        (lambda t: t.permute(1), "NkiTensor.permute: dims must be a tuple of integers, got 1"),
        (lambda t: t.permute("10"), "NkiTensor.permute: dims must be a tuple of integers, got '10'"),
        (lambda t: t[0:1].broadcast(0, 8 / 2), f"NkiTensor.broadcast: size must be an integer, got 4.0{QUOTIENT}"),
        (
            lambda t: t.slice(1, None, 3),
            f"NkiTensor.slice of {TENSOR}: start, end and step must be a tuple of integers, got (None, 3, 1)",
        ),
        (
            lambda t: t.slice(1, 0, 6 / 2),
            f"NkiTensor.slice of {TENSOR}: start, end and step must be a tuple of integers, got (0, 3.0, 1){QUOTIENT}",
        ),
        (lambda t: t.ap([[6, 4], [1, 6]], [0]), f"NkiTensor.ap on {TENSOR}: offset must be an integer, got [0]"),
        (
            lambda t: t.reshape_dim(1, 3),
            f"NkiTensor.reshape_dim of dimension 1 of {TENSOR}: sizes must be a tuple of integers, got 3",
        ),
        (
            lambda t: t.rearrange(("a", ("b", "c")), ("a", "b", "c"), {"b": 2.0}),
            "NkiTensor.rearrange(('a', ('b', 'c')), ('a', 'b', 'c'), {'b': 2.0}) of "
            f"{TENSOR}: dimension 1, ('b', 'c'): sizes must be a tuple of integers, got [2.0, -1]{QUOTIENT}",
        ),
        (
            lambda t: t.rearrange(("a", ("b", "c")), ("a", "b", "c"), 2),
            f"NkiTensor.rearrange(('a', ('b', 'c')), ('a', 'b', 'c'), 2) of {TENSOR}: fixed_sizes must be a dictionary "
            f"of names and sizes, got 2",
        ),
        (
            lambda t: t.rearrange(2, 3),
            f"NkiTensor.rearrange(2, 3, None) of {TENSOR}: src_pattern must be a tuple of names and tuples of names, "
            f"got 2",
        ),
    ],
)
def test_views_name_what_is_no_integer(view: Any, message: str) -> None:
    assert refused(NkiValidationError, lambda: view(in_hbm(counted(4, 6)))) == message


def test_a_tensor_is_no_integer() -> None:
    size = nl.NkiTensor((1, 1), nl.int32, None)
    message = refused(NkiValidationError, lambda: in_hbm(counted(4, 6)).reshape((4, size)))
    assert message.startswith(
        "NkiTensor.reshape: shape must be a tuple of integers, got (4, tensor [1, 1] int32 in sbuf)"
    )


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda t: t.reshape(4, 6), "NkiTensor.reshape() takes 2 positional arguments but 3 were given"),
        (lambda t: t.permute(1, 0), "NkiTensor.permute() takes 2 positional arguments but 3 were given"),
        (lambda t: t.select(1), "NkiTensor.select() missing 1 required positional argument: 'index'"),
        (lambda t: t.ap(), "NkiTensor.ap() missing 1 required positional argument: 'pattern'"),
        (lambda t: t.view(), "NkiTensor.view() missing 1 required positional argument: 'dtype'"),
    ],
)
def test_wrong_calls_name_the_method_as_kernels_know_it(view: Any, message: str) -> None:
    """Sizes one by one are PyTorch's way."""
    assert refused(TypeError, lambda: view(in_hbm(counted(4, 6)))) == message
