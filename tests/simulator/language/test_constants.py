# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nl.shared_constant` and `nl.shared_identity_matrix`: constants in shared HBM, the same for both cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ..kernels import ending, execute, normal, refusal, store, tile
from ..made import Psum, Sbuf
from ..rules import Rule, broken, check_rule, legal, rules


@pytest.mark.parametrize(
    "kind",
    [
        *(np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int16, np.int8, np.uint32, np.uint16, np.uint8),
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu),
    ],
    ids=lambda kind: kind.__name__,
)
def test_an_array_of_every_supported_type(kind: Any) -> None:
    values = np.array([[1, 2, 4], [8, 16, 32]]).astype(kind)

    def body() -> Any:
        constant = nl.shared_constant(values)
        assert constant.buffer is nl.shared_hbm and constant.shape == (2, 3)
        return store(constant)

    result = execute(body)
    assert result.dtype == values.dtype and result.tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(1,), (200, 3), (2, 3, 4)], ids=str)
def test_shapes_are_those_of_hbm(shape: Any) -> None:
    values = normal(*shape)
    assert execute(lambda: store(nl.shared_constant(values))).tolist() == values.tolist()


def test_arrays_that_are_not_dense_or_of_another_byte_order() -> None:
    values = normal(3, 4)
    for array in (values.T, values[:, ::2], values.astype(">f4")):
        assert execute(lambda array=array: store(nl.shared_constant(array))).tolist() == array.tolist()


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_file(tmp_path: Path, as_path: Any) -> None:
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.save(tmp_path / "values.npy", values)
    result = execute(lambda: store(nl.shared_constant(as_path(tmp_path / "values.npy"))))
    assert result.tolist() == values.tolist()


def test_it_is_the_constant_of_the_moment() -> None:
    """A copy: what happens to the array later does not reach the kernel."""
    values = np.ones((1, 2), np.float32)

    def body() -> Any:
        constant = nl.shared_constant(values)
        values[...] = 7
        return store(constant)

    assert execute(body).tolist() == [[1, 1]]


def test_several_constants_of_one_shape() -> None:
    def body() -> Any:
        first, second = (nl.shared_constant(np.full((1, 2), value, np.float32)) for value in (1, 2))
        return store(first), store(second)

    for cores in (1, 2):
        first, second = execute(body, cores=cores)
        assert (first.tolist(), second.tolist()) == ([[1, 1]], [[2, 2]])


@pytest.mark.parametrize("source", ["one object", "equal objects", "file"])
def test_two_cores_share_one_tensor(source: str, tmp_path: Path) -> None:
    values = np.array([[np.nan, 2, -0.0]], np.float32)
    np.save(tmp_path / "values.npy", values)
    storages = {}

    def body() -> Any:
        inputs = {"one object": values, "equal objects": values.copy(), "file": str(tmp_path / "values.npy")}[source]
        constant = nl.shared_constant(inputs)
        storages[nl.program_id(0)] = constant.storage
        return constant

    assert execute(body, cores=2).tobytes() == values.tobytes()
    assert storages[0] is storages[1]


def test_constants_do_not_count_as_allocations_of_the_kernel() -> None:
    """A core may make a constant that the other one does not make; shared tensors keep their order."""

    def body() -> Any:
        core = nl.program_id(0)
        if core == 0:
            nl.shared_constant(np.zeros((2, 2), np.float32))
        result = nl.ndarray((2, 2), nl.float32, nl.shared_hbm)
        nisa.dma_copy(result[core : core + 1], tile(1, 2, value=core + 1))
        return result

    assert execute(body, cores=2).tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            [np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)],
            "number 0 is tensor 'constant' [1, 2] float32 in shared_hbm on one core and [1, 2] float32 with other "
            "values on the other",
        ),
        (
            [np.zeros((1, 2), np.float32), np.zeros((2, 1), np.float32)],
            "number 0 is tensor 'constant' {0} float32 in shared_hbm on one core and {1} float32 on the other",
        ),
        (
            [np.zeros((1, 2), np.float32), np.zeros((1, 2), np.int32)],
            "number 0 is tensor 'constant' [1, 2] {0} in shared_hbm on one core and [1, 2] {1} on the other",
        ),
    ],
    ids=["values", "shapes", "types"],
)
def test_constants_that_differ_between_the_cores(arrays: Any, message: str) -> None:
    """The core that comes second finds it, whichever that is."""
    with pytest.raises(nisa.NkiValidationError) as caught:
        execute(lambda: nl.shared_constant(arrays[nl.program_id(0)]), cores=2)
    _, _, text = str(caught.value).partition(": nl.shared_constant on core ")
    assert text[:3] in ("0: ", "1: ")
    sides = [(list(arrays[0].shape), list(arrays[1].shape)), (arrays[0].dtype, arrays[1].dtype)]
    ways = [message.format(*pair[::step]) for pair in sides for step in (1, -1)]
    assert text[3:] in {f"the cores must make the same constants in the same order: {way}" for way in ways}


def test_a_constant_is_not_written() -> None:
    def body() -> None:
        nisa.dma_copy(nl.shared_constant(np.zeros((1, 2), np.float32)), tile(1, 2))

    assert "tensor 'constant' [1, 2] float32 in shared_hbm is a read-only input and cannot be written" in refusal(body)


def test_low_precision_stored_as_float32() -> None:
    """`NKI_PRECISE_FP=0` keeps bfloat16 in float32."""
    with nkilib.simulator.using(precise_fp=False):
        result = execute(lambda: store(nl.shared_constant(np.array([[1.5, -2]], ml_dtypes.bfloat16))))
    assert result.tolist() == [[1.5, -2]]


# -- shared_identity_matrix ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 128])
@pytest.mark.parametrize("dtype", [nl.uint8, nl.float32, nl.bfloat16, nl.int32, nl.tfloat32], ids=str)
def test_an_identity_matrix(n: int, dtype: Any) -> None:
    def body() -> Any:
        identity = nl.shared_identity_matrix(n, dtype=dtype)
        assert (identity.shape, identity.dtype, identity.buffer) == ((n, n), dtype, nl.sbuf)
        return store(identity)

    assert execute(body).astype(np.float32).tolist() == np.eye(n).tolist()


def test_it_is_uint8_unless_another_type_is_given() -> None:
    result = execute(lambda: store(nl.shared_identity_matrix(3)))
    assert result.dtype == np.uint8 and result.tolist() == np.eye(3).tolist()


def test_into_a_tile_of_the_caller() -> None:
    """The caller's tile is what comes back, and has its own type."""

    def body() -> Any:
        made = nl.ndarray((3, 8), nl.float32)
        part = made[:, 2:5]
        assert nl.shared_identity_matrix(3, dst=part) is part
        return store(part)

    result = execute(body)
    assert result.dtype == np.float32 and result.tolist() == np.eye(3).tolist()


def test_tiles_are_new_and_their_constant_is_not() -> None:
    """The documentation reuses one constant for all identity matrices of a type."""

    def body() -> Any:
        first, second = nl.shared_identity_matrix(2, nl.float32), nl.shared_identity_matrix(2, nl.float32)
        nisa.memset(first, 0)
        return store(first), store(second)

    with nkilib.simulator.recording() as record:
        zeros, identity = nki.jit(body)()
    assert zeros.tolist() == [[0, 0], [0, 0]] and identity.tolist() == [[1, 0], [0, 1]]
    assert record.instruction_counts == {"dma_copy": 4, "memset": 1}
    assert record.hbm_read_bytes == 2 * 16


def test_cores_may_use_identity_matrices_of_unlike_sizes() -> None:
    """Each size is a constant of its own, whoever uses it and in whatever order."""

    def body() -> Any:
        core = nl.program_id(0)
        result = nl.ndarray((2, 9), nl.float32, nl.shared_hbm)
        size = 2 + core
        nisa.dma_copy(result[core, 0 : size * size], nl.shared_identity_matrix(size, nl.float32))
        nisa.dma_copy(result[core, size * size : 9], tile(1, max(1, 9 - size * size))[:, 0 : 9 - size * size])
        return result

    result = execute(body, cores=2)
    assert result[0, 0:4].tolist() == [1, 0, 0, 1]
    assert result[1].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]


# -- rules -----------------------------------------------------------------------------------------------------------

TYPES = (
    "bfloat16, float16, float32, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, int16, int32, int8, tfloat32, uint16, "
    "uint32, uint8"
)


@rules(
    legal(nl.shared_constant, constant=np.array([1.0], np.float32)),
    broken("no array", constant=[1.0]).says("constant must be a numpy array or the path of a .npy file, got [1.0]"),
    broken("float64", constant=np.zeros(2))
    .says(f"a constant must have one of the types {TYPES}, got float64; cast it first")
    .fixed(constant=np.zeros(2, np.float16)),
    broken("bool", constant=np.zeros(2, np.bool_))
    .says(f"a constant must have one of the types {TYPES}, got bool; cast it first")
    .fixed(constant=np.zeros(2, np.uint8)),
    broken("no dimension", constant=np.array(1, np.float32))
    .says("constant must have elements and at least one dimension, got ()")
    .fixed(constant=np.ones(1, np.float32)),
    broken("no element", constant=np.zeros((0, 2), np.float32))
    .says("constant must have elements and at least one dimension, got (0, 2)")
    .fixed(constant=np.zeros((1, 2), np.float32)),
    broken("no file", constant="missing.npy")
    .says("constant: 'missing.npy' is no readable .npy file: [Errno 2] No such file or directory: 'missing.npy'")
    .fixed(constant=np.ones(1, np.float32)),
    legal(nl.shared_identity_matrix, n=128),
    broken("size of an identity matrix", n=129).says("n must be an integer from 1 to 128, got 129"),
    broken("no size", n=0).says("n must be an integer from 1 to 128, got 0").fixed(n=1),
    broken("type of an identity matrix", n=2, dtype=nl.bool_)
    .says(f"a constant must have one of the types {TYPES}, got bool; cast it first")
    .fixed(dtype=nl.uint8),
    legal(nl.shared_identity_matrix, n=2, dst=Sbuf(2, 2)),
    broken("shape of dst", dst=Sbuf(2, 3)).says("dst must be a tile of shape [2, 2] in sbuf, got {dst}"),
    broken("memory of dst", dst=Psum(2, 2)).says("dst must be a tile of shape [2, 2] in sbuf, got {dst}"),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule._replace(corrected=ending(rule.corrected)))


def test_a_file_that_is_no_npy_file(tmp_path: Path) -> None:
    path = tmp_path / "values.npy"
    path.write_text("1 2 3")
    message = refusal(lambda: nl.shared_constant(str(path)))
    assert message.startswith(f"nl.shared_constant: constant: '{path}' is no readable .npy file: ")


def test_an_argument_of_the_kernel_is_a_tensor_already() -> None:
    with pytest.raises(nisa.NkiValidationError, match="constant must be a numpy array or the path"):
        nki.jit(lambda data: nl.shared_constant(data))(np.zeros((1, 1), np.float32))
