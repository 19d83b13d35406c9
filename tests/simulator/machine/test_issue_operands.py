# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rules for the operands of all instructions: kinds, sizes, partitions, memories, types, indirect views."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.isa.definition import Operand
from nkilib.simulator.machine.core import current_core
from nkilib.simulator.machine.issue import REGISTRY, Call, check_operand
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.tensors.tensor import NkiTensor
from nkilib.simulator.tensors.view import partition_in_storage

from ..kernels import Body, Result, execute, refusal, run, tile
from ..made import Hbm, Psum, Sbuf, lazily
from ..rules import LEFT_OUT, Rule, broken, check_rule, legal, rules
from ..sentences import LOAD_FIRST, must, one_each, one_type, out_of_reach

OUT_OF_RANGE = nkilib.simulator.OutOfRangeError
UNINITIALIZED = nkilib.simulator.UninitializedReadError
PSUM = nl.psum


# -- tensors and numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1), np.int32(1), np.float64(1), np.array(1.0)], ids=repr)
def test_numbers_where_a_number_may_stand(value: Any) -> None:
    data = np.array([[2, 3]], np.float32)
    assert run(lambda dst, x: nisa.tensor_scalar(dst, x, nl.add, value), [data], Result((1, 2))).tolist() == [[3, 4]]


@pytest.mark.parametrize("value", ["1", [1.0], 1j, nl.add], ids=repr)
def test_what_is_neither_tensor_nor_number(value: Any) -> None:
    message = refusal(lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, value))
    assert message == f"nisa.tensor_scalar: operand 'operand0' must be a tensor or a number, got {value!r}"


@rules(
    legal(nisa.reciprocal, dst=Sbuf(2, 2), data=Sbuf(2, 2, value=3.0)),
    broken("a number for a tensor", data=3.0).says("operand 'data' must be a tensor, got 3.0"),
    legal(nisa.reciprocal, dst=Sbuf(2, 2), data=Sbuf(2, 2)),
    broken("None for a tensor", dst=None).says("operand 'dst' must be a tensor, got None"),
    broken("an array of the host", dst=Sbuf(1, 1), data=np.ones((1, 1), np.float32))
    .says(
        "operand 'data' must be a tensor, got a numpy ndarray [1, 1] float32: pass it to the kernel as an "
        "argument and load it, or use nl.shared_constant"
    )
    .fixed(data=Sbuf(1, 1, value=1)),
    legal(nisa.activation, dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2)),
    broken("None for a number", scale=None)
    .says("operand 'scale' must be a tensor or a number, got None")
    .fixed(bias=None, scale=LEFT_OUT),
    legal(nisa.activation, dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2), reduce_res=None),
    broken("a number for an output", reduce_res=0.0).says("operand 'reduce_res' must be a tensor, got 0.0"),
)
def test_kinds(rule: Rule) -> None:
    check_rule(rule)


# -- sizes -----------------------------------------------------------------------------------------------------------


STRIDE = "operand {!r}: a free dimension has a stride of at most 32767 elements (signed 16-bit strides), got {} in {}"


@rules(
    legal(nisa.memset, dst=Sbuf(1, 2, 32767, dtype=nl.int8, value=None), value=0),
    broken("free dimensions", dst=Sbuf(2, 1, 2, 1, 2, 1, value=None))
    .says("operand 'dst': at most 4 free dimensions, got {dst}")
    .fixed(dst=Sbuf(2, 1, 2, 1, 2, 1, value=None).reshape((2, 2, 1, 2, 1))),
    broken("elements of a free dimension", dst=Sbuf(2, 65536, dtype=nl.int8, value=None))
    .says("operand 'dst': a free dimension has at most 65535 elements (16-bit sizes), got {dst}")
    .fixed(dst=Sbuf(2, 65536, dtype=nl.int8, value=None)[:, 0:65535]),
    broken("elements of an inner free dimension", dst=Sbuf(1, 1, 70000, dtype=nl.int8, value=None))
    .says("operand 'dst': a free dimension has at most 65535 elements (16-bit sizes), got {dst}")
    .fixed(dst=Sbuf(1, 1, 70000, dtype=nl.int8, value=None).reshape((1, 4, 17500))),
    broken("stride of a free dimension", dst=Sbuf(1, 2, 32768, dtype=nl.int8, value=None)).says(
        STRIDE.format("dst", 32768, "{dst}")
    ),
    broken("stride of an inner free dimension", dst=Sbuf(1, 2, 70000, dtype=nl.int8, value=None)[:, 0:1, 0:40000:39999])
    .says(STRIDE.format("dst", 39999, "{dst}"))
    .fixed(dst=Sbuf(1, 2, 70000, dtype=nl.int8, value=None)[:, 0:1, 0:32768:32767]),
    broken("stride in elements of the view's type", dst=Sbuf(1, 2, 20000, value=None).view(nl.int16))
    .says(STRIDE.format("dst", 40000, "tensor [1, 2, 40000] int16 in sbuf"))
    .fixed(dst=Sbuf(1, 2, 20000, value=None)),
    legal(nisa.tensor_copy, dst=Sbuf(1, 2), src=Sbuf(1, 40000)[:, 0:32768:32767]),
    broken("stride of an input", src=Sbuf(1, 40000)[:, 0:32769:32768]).says(STRIDE.format("src", 32768, "{src}")),
    broken("stride backwards", src=Sbuf(1, 40000).ap([[40000, 1], [-32768, 2]], offset=32768))
    .says(STRIDE.format("src", -32768, "tensor [1, 2] float32 in sbuf"))
    .fixed(src=Sbuf(1, 40000).ap([[40000, 1], [-32767, 2]], offset=32767)),
)
def test_tile_sizes(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_no_tensor_of_more_than_128_partitions_passes(buffer: Any) -> None:
    """Such a tensor cannot be made in a kernel; the check does not rely on that."""

    def kernel() -> None:
        for partitions in (128, 129):
            storage = Storage((partitions, 1), nl.float32, buffer, "")
            tensor = NkiTensor((partitions, 1), nl.float32, storage, buffer)
            call = Call(current_core("this"), REGISTRY["memset"], [])
            check_operand(call, Operand("dst", is_output=True), tensor, None)

    with pytest.raises(nisa.NkiValidationError) as caught:
        execute(kernel)
    place, _, message = str(caught.value).partition(": ")
    line = inspect.getsourcelines(kernel)[1] + 5
    assert place == f"{__file__}:{line}" and message == (
        "operand 'dst': the partition dimension must be at most 128 (nl.tile_size.pmax), got tensor [129, 1] float32 "
        f"in {buffer}"
    )


def test_hbm_tensors_have_no_such_limits() -> None:
    def kernel() -> Any:
        result = nl.ndarray((200, 1, 2, 1, 2, 1), nl.int8, nl.shared_hbm)
        nisa.dma_copy(result, nl.zeros((800,), nl.int8, nl.private_hbm))
        return result

    assert execute(kernel).shape == (200, 1, 2, 1, 2, 1)


def test_dma_walks_sbuf_without_the_limits_of_compute_engines() -> None:
    """Five free dimensions, 70000 elements in one, and a stride of 35000, each out of and into SBUF."""

    def kernel(source: Any) -> Any:
        long, deep = nl.ndarray((1, 70000), nl.int8), nl.ndarray((1, 2, 2, 2, 2, 4375), nl.int8)
        wide = nl.ndarray((1, 2, 35000), nl.int8)
        nisa.dma_copy(long, source)
        nisa.dma_copy(deep, long)
        nisa.dma_copy(wide, deep)
        result = nl.ndarray((1, 70000), nl.int8, nl.shared_hbm)
        nisa.dma_copy(result, wide)
        return result

    source = np.random.default_rng(0).integers(-128, 128, (1, 70000)).astype(np.int8)
    assert nki.jit(kernel)(source).tobytes() == source.tobytes()


# -- partitions ------------------------------------------------------------------------------------------------------

STARTS = {
    range(1, 33): (0, 32, 64, 96),
    range(33, 65): (0, 64),
    range(65, 129): (0,),
}


@pytest.mark.parametrize("partitions", [1, 2, 31, 32, 33, 63, 64, 65, 100, 128])
def test_where_an_access_may_start(partitions: int) -> None:
    """Every start that leaves room is tried: allowed ones run, all others are refused with the allowed ones."""
    (allowed,) = (starts for sizes, starts in STARTS.items() if partitions in sizes)

    def body(start: int) -> Body:
        return lambda: nisa.memset(nl.ndarray((128, 1), nl.float32)[start : start + partitions], 0)

    for start in range(0, 128 - partitions + 1, 1 if partitions > 60 else 16):
        if start in allowed:
            execute(body(start))
            continue
        assert refusal(body(start)) == (
            f"nisa.memset: operand 'dst': an access to {partitions} partitions must start at partition "
            f"{' or '.join(map(str, allowed))}, got a start at {start} of tensor [{partitions}, 1] float32 in sbuf"
        )


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_the_rule_holds_for_inputs_and_vectors_too(buffer: Any) -> None:
    def late(name: str, *shape: int) -> str:
        return (
            f"nisa.tensor_scalar: operand '{name}': an access to 2 partitions must start at partition 0 or 32 or 64 or "
            f"96, got a start at 1 of tensor {list(shape)} float32 in {buffer}"
        )

    def body(data_start: int, operand_start: int) -> Body:
        def kernel() -> None:
            data, operand = tile(64, 3, buffer=buffer), tile(64, 1, buffer=buffer)
            part, column = data[data_start : data_start + 2], operand[operand_start : operand_start + 2]
            nisa.tensor_scalar(tile(2, 3), part, nl.add, column)

        return kernel

    assert refusal(body(1, 0)) == late("data", 2, 3)
    assert refusal(body(0, 1)) == late("operand0", 2, 1)
    execute(body(32, 32))


@pytest.mark.parametrize("view", [nl.float32, nl.int8, nl.int32], ids=str)
def test_the_start_counts_in_the_type_of_the_view(view: Any) -> None:
    def body(start: int) -> Body:
        return lambda: nisa.memset(nl.ndarray((128, 4), nl.float32).view(view)[start : start + 2], 0)

    assert "got a start at 8 of" in refusal(body(8))
    execute(body(96))


def test_start_partition() -> None:
    def kernel() -> list[int]:
        wide = nl.ndarray((128, 6), nl.float32)
        parts = [wide, wide[7:9], wide[7:9, 3:5], wide[5], wide[5:9].view(nl.int16)[1:2], wide[6:128:8]]
        pattern = wide.ap([[6, 3], [2, 2]], offset=6 * 11 + 1)
        return [partition_in_storage(part) for part in [*parts, pattern]]

    assert execute(kernel) == [0, 7, 7, 5, 6, 6, 11]


@rules(
    legal(nisa.memset, dst=Sbuf(128, 1, value=None)[0:32], value=0),
    broken("every other partition", dst=Sbuf(128, 1, value=None)[0:64:2]).says(
        "operand 'dst': an access must take partitions that follow each other, got every 2th of {dst}"
    ),
    legal(nisa.tensor_copy, dst=Sbuf(1, 1), src=Sbuf(128, 1)[64:128:64]),
    broken("one partition with a step", dst=Sbuf(2, 1), src=Sbuf(128, 1)[0:128:64]).says(
        "operand 'src': an access must take partitions that follow each other, got every 64th of {src}"
    ),
)
def test_partitions_follow_each_other(rule: Rule) -> None:
    check_rule(rule)


# -- memories, types, read-only inputs -------------------------------------------------------------------------------


UNWRITTEN = lazily(nl.ndarray, (2, 3), nl.float32, name="scale")


@rules(
    legal(nisa.reciprocal, dst=Sbuf(2, 2), data=Psum(2, 2, value=1)),
    broken("memory", data=Hbm(2, 2, buffer=nl.shared_hbm)).says(must("data", "be in psum or sbuf", LOAD_FIRST)),
    broken("unwritten input", error=UNINITIALIZED, dst=Sbuf(2, 3), data=UNWRITTEN)
    .says("operand 'data': 6 of the 6 elements of tensor 'scale' [2, 3] float32 in sbuf were never written")
    .fixed(dst=UNWRITTEN, data=Sbuf(2, 3)),
    legal(nisa.iota, dst=Sbuf(2, 2, dtype=nl.int32, value=None), pattern=[[1, 2]]),
    broken("one memory", dst=Hbm(2, 2, dtype=nl.int32)).says(must("dst", "be in sbuf")),
    legal(nisa.activation, dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2)),
    broken("type", scale=Sbuf(2, 1, dtype=nl.float16))
    .says(one_type("scale", "float32"))
    .fixed(bias=Sbuf(2, 1, dtype=nl.float16), scale=LEFT_OUT),
    broken("vector of a row", bias=Sbuf(1, 2)).says(one_each("bias", "data")).fixed(bias=Sbuf(2, 1, 1)),
    legal(nisa.tensor_tensor, dst=Sbuf(2, 2), data1=Sbuf(2, 2), data2=Psum(2, 2), op=nl.add, engine=nisa.engine.vector),
    broken("GpSimd and PSUM", engine=nisa.engine.gpsimd).says(out_of_reach("data2")),
)
def test_memories_types_and_vectors(rule: Rule) -> None:
    check_rule(rule)


def test_a_read_only_input_is_not_written() -> None:
    fixed = np.zeros((2, 2), np.float32)
    fixed.flags.writeable = False

    def kernel(weights: Any) -> None:
        nisa.dma_copy(weights, tile(2, 2))

    with pytest.raises(nisa.NkiValidationError) as caught:
        nki.jit(kernel)(fixed)
    assert str(caught.value).endswith(
        "nisa.dma_copy: operand 'dst': tensor 'weights' [2, 2] float32 in private_hbm is a read-only input and "
        "cannot be written: pass a writable array, or a torch tensor that does not require grad (.detach())"
    )
    nki.jit(kernel)(np.zeros((2, 2), np.float32))


# -- indirect views --------------------------------------------------------------------------------------------------


def selecting(value: int) -> Body:
    """Copy element `value` of the free dimension of [[0, 1, 2, 3], ...], read at run time, into column 3."""

    def kernel() -> Any:
        data, index = nl.ndarray((2, 4), nl.float32), tile(1, 1, dtype=nl.int32, value=value)
        nisa.iota(data, [[1, 4]], 0, 10)
        nisa.tensor_copy(data.select(1, tile(1, 1, dtype=nl.int32, value=3)), data.select(1, index))
        result = nl.ndarray((2, 4), nl.float32, nl.shared_hbm)
        nisa.dma_copy(result, data)
        return result

    return kernel


def test_engines_take_views_with_a_scalar_offset() -> None:
    assert execute(selecting(1)).tolist() == [[0, 1, 2, 1], [10, 11, 12, 11]]


@pytest.mark.parametrize("value", [-1, 4, 1000])
def test_a_scalar_offset_out_of_range(value: int) -> None:
    assert refusal(selecting(value), error=OUT_OF_RANGE) == (
        f"nisa.tensor_copy: operand 'src': index {value} in partition 0 of tensor [1, 1] int32 in sbuf is out of range "
        "[0, 4) of tensor [2, 4] float32 in sbuf"
    )


def test_a_scalar_offset_that_was_never_written() -> None:
    def kernel() -> None:
        nisa.reciprocal(tile(2, 1), tile(2, 4).select(1, nl.ndarray((1, 1), nl.int32)))

    assert refusal(kernel, error=UNINITIALIZED) == (
        "nisa.reciprocal: index tensor [1, 1] int32 in sbuf is read before it was written"
    )


def test_an_output_with_a_scalar_offset_is_marked_where_it_was_written() -> None:
    def body(columns: int) -> Body:
        def kernel() -> None:
            made = nl.ndarray((2, 3), nl.float32)
            for column in range(columns):
                nisa.memset(made.select(1, tile(1, 1, dtype=nl.int32, value=column)), column)
            nisa.reciprocal(tile(2, 3), made)

        return kernel

    assert refusal(body(2), error=UNINITIALIZED) == (
        "nisa.reciprocal: operand 'data': 2 of the 6 elements of tensor [2, 3] float32 in sbuf were never written"
    )
    execute(body(3))


def test_engines_do_not_take_hbm_views_with_a_vector_offset() -> None:
    def kernel() -> None:
        data, index = nl.ones((4, 2), nl.float32, nl.private_hbm), tile(2, 1, dtype=nl.int32)
        nisa.reciprocal(tile(2, 2), data.vector_select(0, index))

    assert refusal(kernel) == (
        "nisa.reciprocal: operand 'data' must be in psum or sbuf, got tensor [2, 2] float32 in private_hbm"
        "; load it to sbuf first, with nisa.dma_copy"
    )
