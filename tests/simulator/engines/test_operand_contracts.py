# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The documented contract of every tensor parameter (memories, types, whether it is written); views without elements.

The table below was written from the docstrings of `nki.isa`, in their order from `dma_copy` to `iota`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator.machine.issue import REGISTRY
from nkilib.simulator.terms.dtypes import ALL_DTYPES

from ..kernels import Body, Result, execute, run, tile

MEMORIES = {"sbuf": nl.sbuf, "psum": nl.psum, "hbm": nl.shared_hbm}

# Data types by the documentation's names; packed ones are moved, never computed with, and int64 goes by DMA only.
PACKED = {"float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4"}
WIDE = {"int64"}
ANY = {str(dtype) for dtype in ALL_DTYPES} - PACKED - WIDE
MATRIX = {"float8_e4m3", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32"}
CUMULATIVE = {"bfloat16", "float16", "float32", "uint8", "uint16", "int8", "int16"}
FP8 = {"float8_e4m3", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu"}


class Parameter(NamedTuple):
    """A documented tensor parameter.

    Attributes:
        shape: one that goes with those of the others.
        dtype: the type that it has unless the test changes it.
        memories: all in which it may be, the one to use first.
        types: all that it may have.
        tied: the parameters whose type must be the same.
        is_output: whether the instruction writes all of it; else it reads it.
    """

    shape: tuple[int, ...]
    dtype: Any = nl.float32
    memories: str = "sbuf psum"
    types: set[str] = ANY
    tied: tuple[str, ...] = ()
    is_output: bool = False


class Contract(NamedTuple):
    """An instruction.

    Attributes:
        call: runs it on its tensor parameters.
        parameters: all of these, by name.
        target: a generation that has it.
    """

    call: Callable[..., Any]
    parameters: dict[str, Parameter]
    target: str = "trn2"


TILE = Parameter((2, 4))
COLUMN = Parameter((2, 1))
FLOAT32_COLUMN = COLUMN._replace(types={"float32"})
RESULT = TILE._replace(is_output=True)
MOVED = TILE._replace(types=ANY | PACKED)
COPIED = TILE._replace(types=ANY | PACKED | WIDE)
COMMAND = nisa.reduce_cmd.reset_reduce

CONTRACTS: dict[str, Contract] = {
    "dma_copy": Contract(
        lambda dst, src: nisa.dma_copy(dst, src),
        {
            "dst": COPIED._replace(memories="hbm sbuf", is_output=True, tied=("src",)),
            "src": COPIED._replace(memories="sbuf hbm", tied=("dst",)),
        },
    ),
    "tensor_copy": Contract(
        lambda dst, src: nisa.tensor_copy(dst, src),
        {"dst": MOVED._replace(is_output=True, tied=("src",)), "src": MOVED._replace(tied=("dst",))},
    ),
    "memset": Contract(lambda dst: nisa.memset(dst, 0), {"dst": MOVED._replace(is_output=True)}),
    "tensor_copy_predicated": Contract(
        # Of a result that it leaves alone nothing is read.
        lambda dst, src, predicate: (nisa.memset(dst, 0), nisa.tensor_copy_predicated(dst, src, predicate)),
        {
            "dst": RESULT._replace(tied=("src",)),
            "src": TILE._replace(tied=("dst",)),
            "predicate": TILE._replace(dtype=nl.uint8, types={"uint8", "uint16", "uint32"}),
        },
    ),
    "nc_matmul": Contract(
        lambda dst, stationary, moving: nisa.nc_matmul(dst, stationary, moving),
        {
            "dst": Parameter((4, 3), memories="psum", types={"float32"}, is_output=True),
            "stationary": Parameter((2, 4), nl.bfloat16, "sbuf", types=MATRIX, tied=("moving",)),
            "moving": Parameter((2, 3), nl.bfloat16, "sbuf", types=MATRIX, tied=("stationary",)),
        },
    ),
    "nc_matmul on trn3": Contract(
        lambda dst, stationary, moving: nisa.nc_matmul(dst, stationary, moving),
        {
            "dst": Parameter((4, 3), memories="psum", types={"float32", "bfloat16"}, is_output=True),
            "stationary": Parameter((2, 4), nl.bfloat16, "sbuf", types=MATRIX | {"float8_e4m3fn"}, tied=("moving",)),
            "moving": Parameter((2, 3), nl.bfloat16, "sbuf", types=MATRIX | {"float8_e4m3fn"}, tied=("stationary",)),
        },
        "trn3",
    ),
    "nc_matmul_mx": Contract(
        lambda **tensors: nisa.nc_matmul_mx(**tensors),
        {
            "dst": Parameter((4, 3), memories="psum", types={"float32", "bfloat16"}, is_output=True),
            "stationary": Parameter((32, 4), nl.float8_e5m2_x4, "sbuf", PACKED),
            "moving": Parameter((32, 3), nl.float8_e5m2_x4, "sbuf", PACKED),
            "stationary_scale": Parameter((4, 4), nl.uint8, "sbuf", {"uint8", "float8_e8m0fnu"}),
            "moving_scale": Parameter((4, 3), nl.uint8, "sbuf", {"uint8", "float8_e8m0fnu"}),
        },
        "trn3",
    ),
    "nc_transpose": Contract(
        lambda dst, data: nisa.nc_transpose(dst, data),
        {
            "dst": MOVED._replace(shape=(4, 2), is_output=True, tied=("data",)),
            "data": MOVED._replace(tied=("dst",)),
        },
    ),
    "dma_transpose": Contract(
        lambda dst, src: nisa.dma_transpose(dst, src),
        {
            "dst": MOVED._replace(shape=(4, 2), memories="sbuf", is_output=True, tied=("src",)),
            "src": MOVED._replace(memories="hbm sbuf", tied=("dst",)),
        },
    ),
    "tensor_tensor": Contract(
        lambda dst, data1, data2: nisa.tensor_tensor(dst, data1, data2, nl.add),
        {"dst": RESULT, "data1": TILE, "data2": TILE},
    ),
    "tensor_scalar": Contract(
        lambda dst, data, operand0, operand1: nisa.tensor_scalar(
            dst, data, nl.add, operand0, op1=nl.multiply, operand1=operand1
        ),
        {"dst": RESULT, "data": TILE, "operand0": FLOAT32_COLUMN, "operand1": FLOAT32_COLUMN},
    ),
    "tensor_reduce": Contract(
        lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, axis=1),
        {"dst": COLUMN._replace(is_output=True), "data": TILE},
    ),
    "tensor_partition_reduce": Contract(
        lambda dst, data: nisa.tensor_partition_reduce(dst, nl.add, data),
        {"dst": RESULT._replace(shape=(1, 4), memories="sbuf"), "data": TILE._replace(memories="sbuf")},
    ),
    "tensor_scalar_cumulative": Contract(
        lambda dst, src, imm0, imm1: nisa.tensor_scalar_cumulative(
            dst, src, nl.multiply, nl.add, imm0, imm1, nisa.reduce_cmd.load_reduce
        ),
        {
            "dst": RESULT._replace(types=CUMULATIVE | FP8),
            "src": TILE._replace(types=CUMULATIVE | FP8),
            "imm0": FLOAT32_COLUMN,
            "imm1": FLOAT32_COLUMN,
        },
    ),
    "activation": Contract(
        lambda dst, data, bias, scale, reduce_res: nisa.activation(
            dst, nl.square, data, bias, scale, nl.add, reduce_res, COMMAND
        ),
        {
            "dst": RESULT,
            "data": TILE,
            "bias": COLUMN._replace(types=ANY - {"tfloat32"}),
            "scale": FLOAT32_COLUMN,
            "reduce_res": COLUMN._replace(is_output=True),
        },
    ),
    "activation_reduce": Contract(
        lambda dst, data, bias, scale, reduce_res: nisa.activation_reduce(
            dst, nl.square, data, nl.add, reduce_res, bias, scale
        ),
        {
            "dst": RESULT,
            "data": TILE,
            "bias": COLUMN._replace(types=ANY - {"tfloat32"}),
            "scale": FLOAT32_COLUMN,
            "reduce_res": COLUMN._replace(is_output=True),
        },
    ),
    "activate2": Contract(
        lambda dst, data, imm0, imm1, relu_param, reduce_res: nisa.activate2(
            dst,
            nl.prelu,
            data,
            imm0,
            imm1,
            nl.multiply,
            nl.add,
            relu_param,
            reduce_op=nl.maximum,
            reduce_res=reduce_res,
            reduce_cmd=COMMAND,
        ),
        {
            "dst": RESULT,
            "data": TILE,
            "imm0": COLUMN._replace(tied=("imm1",)),
            "imm1": COLUMN._replace(tied=("imm0",)),
            "relu_param": COLUMN,
            "reduce_res": COLUMN._replace(is_output=True),
        },
        "trn3",
    ),
    "iota": Contract(lambda dst: nisa.iota(dst, [[1, 4]]), {"dst": RESULT._replace(memories="sbuf")}),
}


def name_of(title: str) -> str:
    return title.partition(" ")[0]


def made(parameter: Parameter, dtype: Any, memory: str, is_written: bool) -> Any:
    """Make a tensor of zeros, or one that was not written, in a kernel."""
    tensor = nl.ndarray(parameter.shape, dtype, MEMORIES[memory])
    if is_written and (memory == "hbm" or dtype in WIDE):
        nisa.dma_copy(tensor, zeros(parameter.shape, dtype))
    elif is_written:
        nisa.memset(tensor, 0)
    return tensor


def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """Make a tile of zeros in a kernel; one of int64 is filled by its halves."""
    if dtype in WIDE:
        return tile(*shape[:-1], 2 * shape[-1], dtype=nl.int32).view(dtype)
    return tile(*shape, dtype=dtype)


def calling(
    title: str, *, dtypes: dict[str, Any] | None = None, places: dict[str, str] | None = None, unwritten: str = ""
) -> Callable[[], Any]:
    """A kernel that runs an instruction with some of its parameters of another type, elsewhere, or not written, and
    returns the parameters; results are not written before."""
    call, parameters, _ = CONTRACTS[title]

    def kernel() -> None:
        tensors = {}
        for name, parameter in parameters.items():
            dtype = (dtypes or {}).get(name, parameter.dtype)
            place = (places or {}).get(name, parameter.memories.split()[0])
            tensors[name] = made(parameter, dtype, place, not parameter.is_output and name != unwritten)
        call(**tensors)
        for name, parameter in parameters.items():
            if parameter.is_output:  # of the whole result, or this read is refused
                result = tensors[name]
                if result.buffer is nl.shared_hbm:
                    nisa.dma_copy(nl.ndarray(result.shape, result.dtype), result)
                else:
                    nisa.tensor_copy(nl.ndarray(result.shape, result.dtype), result)

    return kernel


def refused(kernel: Callable[[], Any], target: str) -> bool:
    try:
        execute(kernel, target)
    except nisa.NkiValidationError:
        return True
    return False


EVERY = [(title, name) for title, contract in CONTRACTS.items() for name in contract.parameters]
EVERY_INPUT = [(title, name) for title, name in EVERY if not CONTRACTS[title].parameters[name].is_output]


@pytest.mark.parametrize("title", CONTRACTS)
def test_the_table_has_the_tensor_parameters_of_the_instruction(title: str) -> None:
    operands = REGISTRY[name_of(title)].operands
    documented = CONTRACTS[title].parameters
    assert {operand.name: operand.is_output for operand in operands} == {
        name: parameter.is_output for name, parameter in documented.items()
    }


@pytest.mark.parametrize("title", CONTRACTS)
def test_generations(title: str) -> None:
    """Two are new in trn3; all others ran on trn1 as well."""
    running = [target for target in ("trn1", "trn2", "trn3") if not refused(calling(title), target)]
    assert running == (["trn3"] if title in ("nc_matmul_mx", "activate2") else ["trn1", "trn2", "trn3"])


@pytest.mark.parametrize(("title", "name"), EVERY)
def test_memories(title: str, name: str) -> None:
    allowed = CONTRACTS[title].parameters[name].memories.split()
    running = [
        place for place in MEMORIES if not refused(calling(title, places={name: place}), CONTRACTS[title].target)
    ]
    assert sorted(running) == sorted(allowed)


@pytest.mark.parametrize(("title", "name"), EVERY)
def test_types(title: str, name: str) -> None:
    """Parameters whose types must be the same change together; another type is refused in one parameter alone."""
    parameter, target = CONTRACTS[title].parameters[name], CONTRACTS[title].target
    running = set()
    for dtype in ALL_DTYPES:
        dtypes = dict.fromkeys((name, *parameter.tied), dtype)
        if not refused(calling(title, dtypes=dtypes), target):
            running.add(str(dtype))
        assert dtype in parameter.types or refused(calling(title, dtypes={name: dtype}), target)
    assert running == parameter.types


@pytest.mark.parametrize(("title", "name"), EVERY_INPUT)
def test_an_input_must_have_been_written(title: str, name: str) -> None:
    with pytest.raises(nkilib.simulator.UninitializedReadError) as caught:
        execute(calling(title, unwritten=name), CONTRACTS[title].target)
    assert f": nisa.{name_of(title)}: operand {name!r}: " in str(caught.value)


# Views without elements, as kernels make where a core has no rows: nothing happens, and sums are those of nothing.


def flat(*shape: int, dtype: Any = nl.float32) -> Any:
    """Make a view with the partitions of a tile and none of its columns, in a kernel."""
    made = tile(*shape, dtype=dtype)
    return made[:, 0:0]


def none(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """Make a view with the columns of a tile and none of its partitions, in a kernel."""
    return tile(*shape, dtype=dtype, buffer=buffer)[0:0]


U8, U16, U32, I32, BF16 = nl.uint8, nl.uint16, nl.uint32, nl.int32, nl.bfloat16

WITHOUT_COLUMNS: dict[str, Body] = {
    "tensor_copy": lambda: nisa.tensor_copy(flat(2, 2), flat(2, 2)),
    "memset": lambda: nisa.memset(flat(2, 2), 1),
    "reciprocal": lambda: nisa.reciprocal(flat(2, 2), flat(2, 2)),
    "tensor_tensor": lambda: nisa.tensor_tensor(flat(2, 2), flat(2, 2), flat(2, 2), nl.add),
    "tensor_scalar": lambda: nisa.tensor_scalar(flat(2, 2), flat(2, 2), nl.add, tile(2, 1)),
    "scalar_tensor_tensor": lambda: nisa.scalar_tensor_tensor(flat(2, 2), flat(2, 2), nl.add, 1.0, nl.add, flat(2, 2)),
    "tensor_tensor_scan": lambda: nisa.tensor_tensor_scan(
        flat(2, 2), flat(2, 2), flat(2, 2), tile(2, 1), nl.add, nl.add
    ),
    "tensor_copy_predicated": lambda: nisa.tensor_copy_predicated(flat(2, 2), flat(2, 2), flat(2, 2, dtype=U8)),
    "nc_n_gather": lambda: nisa.nc_n_gather(flat(2, 2), tile(2, 2), flat(2, 2, dtype=U32)),
    "nc_stream_shuffle": lambda: nisa.nc_stream_shuffle(flat(32, 2), flat(32, 2), [0] * 32),
    "nonzero_with_count": lambda: nisa.nonzero_with_count(tile(16, 1, dtype=I32), flat(16, 2)),
    "rng": lambda: nisa.rng(flat(2, 2, dtype=U32)),
    "rand2": lambda: nisa.rand2(flat(2, 2), 0.0, 1.0),
    "dropout": lambda: nisa.dropout(flat(2, 2), flat(2, 2), tile(2, 1)),
    "quantize_mx": lambda: nisa.quantize_mx(
        flat(32, 1, dtype=nl.float8_e5m2_x4), flat(32, 4, dtype=BF16), flat(32, 1, dtype=U8)
    ),
    "dma_copy": lambda: nisa.dma_copy(flat(2, 2), flat(2, 2)),
    "dma_compute": lambda: nisa.dma_compute(flat(2, 2), [flat(2, 2), flat(2, 2)], nl.add),
}

WITHOUT_PARTITIONS: dict[str, Body] = {
    "tensor_copy": lambda: nisa.tensor_copy(none(2, 2), none(2, 2)),
    "memset": lambda: nisa.memset(none(2, 2), 1),
    "reciprocal": lambda: nisa.reciprocal(none(2, 2), none(2, 2)),
    "tensor_tensor": lambda: nisa.tensor_tensor(none(2, 2), none(2, 2), none(2, 2), nl.add),
    "tensor_scalar": lambda: nisa.tensor_scalar(none(2, 2), none(2, 2), nl.add, none(2, 1)),
    "tensor_reduce": lambda: nisa.tensor_reduce(none(2, 1), nl.max, none(2, 2), 1),
    "scalar_tensor_tensor": lambda: nisa.scalar_tensor_tensor(none(2, 2), none(2, 2), nl.add, 1.0, nl.add, none(2, 2)),
    "tensor_scalar_reduce": lambda: nisa.tensor_scalar_reduce(
        none(2, 2), none(2, 2), nl.add, none(2, 1), nl.max, none(2, 1)
    ),
    "select_reduce": lambda: nisa.select_reduce(
        none(2, 2), none(2, 2, dtype=U8), none(2, 2), none(2, 1), none(2, 1), nisa.reduce_cmd.reset_reduce
    ),
    "exponential": lambda: nisa.exponential(
        none(2, 2), none(2, 2), none(2, 1), none(2, 1), nisa.reduce_cmd.reset_reduce
    ),
    "range_select": lambda: nisa.range_select(
        none(2, 2), none(2, 2), nl.less, nl.less, none(2, 1), none(2, 1), nisa.reduce_cmd.reset_reduce, none(2, 1)
    ),
    "affine_select": lambda: nisa.affine_select(none(2, 2), [[1, 2]], 1, none(2, 2), 0.0),
    "tensor_tensor_scan": lambda: nisa.tensor_tensor_scan(
        none(2, 2), none(2, 2), none(2, 2), none(2, 1), nl.add, nl.add
    ),
    "tensor_copy_predicated": lambda: nisa.tensor_copy_predicated(none(2, 2), none(2, 2), none(2, 2, dtype=U8)),
    "local_gather": lambda: nisa.local_gather(none(16, 32), none(16, 2), none(16, 2, dtype=U16)),
    "nc_n_gather": lambda: nisa.nc_n_gather(none(2, 2), none(2, 2), none(2, 2, dtype=U32)),
    "nc_stream_shuffle": lambda: nisa.nc_stream_shuffle(none(32, 2), none(32, 2), [0] * 32),
    "bn_stats": lambda: nisa.bn_stats(none(2, 6), none(2, 8)),
    "bn_aggr": lambda: nisa.bn_aggr(none(2, 2), none(2, 6)),
    "max8": lambda: nisa.max8(none(2, 8), none(2, 8)),
    "nc_find_index8": lambda: nisa.nc_find_index8(none(2, 8, dtype=U32), none(2, 8), none(2, 8)),
    "nc_match_replace8": lambda: nisa.nc_match_replace8(none(2, 8), none(2, 8), none(2, 8), 0.0, none(2, 8, dtype=U32)),
    "topk": lambda: nisa.topk(none(16, 8, dtype=BF16), none(16, 8, dtype=U32), none(16, 1, dtype=BF16), 8),
    "nonzero_with_count": lambda: nisa.nonzero_with_count(none(16, 3, dtype=I32), none(16, 2)),
    "rng": lambda: nisa.rng(none(2, 2, dtype=U32)),
    "rand2": lambda: nisa.rand2(none(2, 2), none(2, 1), none(2, 1)),
    "dropout": lambda: nisa.dropout(none(2, 2), none(2, 2), none(2, 1)),
    "dma_copy": lambda: nisa.dma_copy(none(2, 2), none(2, 2)),
    "dma_compute": lambda: nisa.dma_compute(none(2, 2), [none(2, 2), none(2, 2)], nl.add),
}


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tiles that the kernels of a test have made, each with one memset."""
    made: list[Any] = []
    make = tile

    def remembered(*shape: int, **options: Any) -> Any:
        made.append(make(*shape, **options))
        return made[-1]

    monkeypatch.setitem(globals(), "tile", remembered)
    return made


@pytest.mark.parametrize("name", WITHOUT_COLUMNS)
def test_without_columns(name: str, tiles: list[Any]) -> None:
    with nkilib.simulator.recording() as record:
        execute(WITHOUT_COLUMNS[name], "trn3")
    assert record.instruction_counts - Counter(memset=len(tiles)) == {name: 1}
    assert not any(made.array.any() for made in tiles)


@pytest.mark.parametrize("name", WITHOUT_PARTITIONS)
def test_without_partitions(name: str, tiles: list[Any]) -> None:
    with nkilib.simulator.recording() as record:
        execute(WITHOUT_PARTITIONS[name], "trn3")
    assert record.instruction_counts - Counter(memset=len(tiles)) == {name: 1}
    assert not any(made.array.any() for made in tiles)


@pytest.mark.parametrize(
    ("name", "identity"), [("add", 0), ("multiply", 1), ("max", -math.inf), ("min", math.inf)], ids=str
)
def test_a_reduction_of_nothing_is_the_identity(name: str, identity: float) -> None:
    op = getattr(nl, name)

    def body(beside: Any, alone: Any, kept: Any) -> None:
        nisa.tensor_scalar_reduce(flat(2, 2), flat(2, 2), nl.add, 1.0, op, beside)
        nisa.tensor_reduce(alone, op, flat(2, 2), 1)
        nisa.tensor_reduce(kept, op, tile(2, 3, 2)[:, :, 0:0], 2)

    results = run(body, [], Result((2, 1)), Result((2, 1)), Result((2, 3)))
    assert [result.tolist() for result in results] == [[[identity]] * 2, [[identity]] * 2, [[identity] * 3] * 2]


def test_the_maximum_of_a_selection_from_nothing() -> None:
    def body(selected: Any, in_range: Any, total: Any) -> None:
        nisa.select_reduce(flat(2, 2), flat(2, 2, dtype=U8), flat(2, 2), 0.0, selected, nisa.reduce_cmd.reset_reduce)
        nisa.range_select(
            flat(2, 2),
            flat(2, 2),
            nl.less,
            nl.less,
            tile(2, 1),
            tile(2, 1),
            nisa.reduce_cmd.reset_reduce,
            in_range,
        )
        nisa.exponential(flat(2, 2), flat(2, 2), 0.0, total, nisa.reduce_cmd.load_reduce, 3.0)

    results = run(body, [], *[Result((2, 1))] * 3, target="trn3")
    assert [result.tolist() for result in results] == [[[-math.inf]] * 2, [[-math.inf]] * 2, [[3]] * 2]


def test_a_count_of_nothing_is_0() -> None:
    result = run(lambda dst: nisa.nonzero_with_count(dst, flat(1, 2)), [], Result((1, 1), I32))
    assert result.tolist() == [[0]]
