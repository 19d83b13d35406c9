# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`dma_copy`: static copies between all memories, casts, the rules of all copies, modes, HBM bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Body, engine_of, execute, hbm, launch, normal, refusal, sbuf, tile
from ...made import Hbm, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, DMA_MEMORIES, must

UNINITIALIZED = nkilib.simulator.UninitializedReadError
SKIP = nisa.oob_mode.skip
DGE = nisa.dge_mode
ENGINE = nisa.engine


def indices(*values: int, dtype: Any = nl.int32) -> Any:
    """Make an SBUF tensor of shape `(P, 1)` with these values, in a kernel."""
    made = sbuf(len(values), 1, dtype=dtype)
    for partition, value in enumerate(values):
        nisa.dma_copy(made[partition : partition + 1], nl.full((1, 1), value, dtype, nl.private_hbm))
    return made


def rows(count: int, width: int) -> Any:
    """Row r is 10 r, 10 r + 1, ..."""
    return (np.arange(count)[:, None] * 10 + np.arange(width)[None, :]).astype(np.float32)


def gathering(*values: int, **options: Any) -> Body:
    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(sbuf(len(values), 2), data.vector_select(0, indices(*values)), **options)

    return kernel


def scattering(*values: int, **options: Any) -> Body:
    def kernel() -> None:
        nisa.dma_copy(hbm(4, 2).vector_select(0, indices(*values)), tile(len(values), 2), **options)

    return kernel


# -- static copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["hbm-hbm", "hbm-sbuf-hbm", "hbm-sbuf-sbuf-hbm"])
def test_copies_between_hbm_and_sbuf(way: str) -> None:
    values = normal(5, 7)

    def body(source: Any) -> Any:
        current = source
        for memory in way.split("-")[1:]:
            following = hbm(5, 7) if memory == "hbm" else sbuf(5, 7)
            nisa.dma_copy(dst=following, src=current)
            current = following
        return current

    assert launch(body, values).tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(24,), (1, 24), (4, 6), (2, 3, 4), (24, 1), (2, 2, 2, 3)], ids=str)
def test_only_the_number_of_elements_must_match(shape: Any) -> None:
    """Both sides are walked in row-major order, in HBM and, partition by partition, in SBUF."""

    def body(source: Any) -> Any:
        between, result = hbm(*shape), hbm(24)
        nisa.dma_copy(between, source)
        if len(shape) > 1:
            tiles = sbuf(*shape)
            nisa.dma_copy(tiles, between)
            between = tiles
        nisa.dma_copy(result, between)
        return result

    values = rows(3, 8)
    assert launch(body, values).tolist() == values.reshape(-1).tolist()


def test_strided_views_on_both_sides() -> None:
    def body(source: Any) -> Any:
        result = nl.zeros((4, 4), nl.float32, nl.private_hbm)
        nisa.dma_copy(result[1::2, 0:4:2], source.permute((1, 0))[2:4, 0:3:2])
        return result

    values = rows(3, 4)
    expected = np.zeros((4, 4), np.float32)
    expected[1::2, 0:4:2] = values.T[2:4, 0:3:2]
    assert launch(body, values).tolist() == expected.tolist()


def test_a_broadcast_source() -> None:
    def body(source: Any) -> Any:
        result = hbm(3, 4)
        nisa.dma_copy(result, source.broadcast(0, 3))
        return result

    assert launch(body, rows(1, 4)).tolist() == [[0, 1, 2, 3]] * 3


def test_every_other_partition() -> None:
    """DMA, unlike the engines, may start at any partition and step over some."""

    def body(source: Any) -> Any:
        wide, result = tile(8, 2, value=-1), hbm(8, 2)
        nisa.dma_copy(wide[1:8:3], source)
        nisa.dma_copy(result, wide)
        return result

    expected = np.full((8, 2), -1, np.float32)
    expected[1:8:3] = rows(3, 2)
    assert launch(body, rows(3, 2)).tolist() == expected.tolist()


@nkilib.simulator.using(overlapping_copies="ignore")
def test_an_overlapping_source_is_read_before_it_is_written() -> None:
    def body(data: Any) -> Any:
        nisa.dma_copy(data[1:4], data[0:3])
        return data

    values = rows(4, 2)
    assert launch(body, values) is values
    assert values.tolist() == rows(4, 2)[[0, 0, 1, 2]].tolist()


def test_only_what_is_copied_counts_as_written() -> None:
    def body(columns: int) -> Body:
        def kernel() -> None:
            made = sbuf(2, 4)
            nisa.dma_copy(made[:, 0:columns], nl.zeros((2, columns), nl.float32, nl.private_hbm))
            nisa.dma_copy(hbm(2, 4), made)

        return kernel

    message = refusal(body(3), error=UNINITIALIZED)
    assert message == (
        "nisa.dma_copy: operand 'src': 2 of the 8 elements of tensor [2, 4] float32 in sbuf were never written"
    )
    execute(body(4))


# -- casts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (np.array([16777217, -5], np.int32), nl.int32, [16777217, -5]),
        (np.array([16777217, 2**31 - 1], np.int32), nl.float32, [16777216, 2**31]),
        (np.array([16777217, -5], np.int32), nl.uint32, [16777216, 0]),
        (np.array([300, -5], np.int16), nl.int8, [127, -5]),
        (np.array([0.5, 1.5, 2.5, -3.7, 1e12, -np.inf], np.float32), nl.int32, [0, 2, 2, -4, 2**31 - 1, -(2**31)]),
        (np.array([257, 259, 1 + 2**-8], np.float32), nl.bfloat16, [256, 260, 1]),
        (np.array([1.5, -2], ml_dtypes.bfloat16), nl.float32, [1.5, -2]),
        (np.array([2049, 65519], np.float32), nl.float16, [2048, 65504]),
        (np.array([1 + 2**-11, 1 + 3 * 2**-11], np.float32), nl.tfloat32, [1, 1 + 2**-9]),
        (np.array([1.1875, 17], np.float32), nl.float8_e4m3, [1.25, 16]),
        (np.array([1.3, -3], ml_dtypes.bfloat16), nl.float8_e5m2, [1.25, -3]),
        (np.array([1, 255], np.uint8), nl.bfloat16, [1, 255]),
        (np.array([0, 1], np.uint8), nl.bool_, [0, 1]),
    ],
)
def test_casts_go_through_float32(values: Any, dtype: Any, expected: Any) -> None:
    """And equal types are copied as they are."""

    def body(source: Any) -> Any:
        result = hbm(len(expected), dtype=dtype)
        nisa.dma_copy(result, source)
        return result

    assert launch(body, values).tolist() == expected


@pytest.mark.parametrize("bits", [np.uint16([0x7FC1, 0xFF81, 1]), np.uint32([0x7FC12345, 0xFF800001, 1])])
def test_equal_types_keep_every_bit(bits: Any) -> None:
    values = bits.view(ml_dtypes.bfloat16 if bits.itemsize == 2 else np.float32)

    def body(source: Any) -> Any:
        between, result = sbuf(1, 3, dtype=source.dtype), hbm(3, dtype=source.dtype)
        nisa.dma_copy(between, source)
        nisa.dma_copy(result, between)
        return result

    assert launch(body, values).tobytes() == values.tobytes()


# -- modes -----------------------------------------------------------------------------------------------------------


def copying(**options: Any) -> Body:
    return lambda: nisa.dma_copy(sbuf(2, 2), nl.zeros((2, 2), nl.float32, nl.private_hbm), **options)


def pattern_of_two_rows(partitions: int, columns: int) -> Body:
    """A gather of two rows with an offset of another shape, which only `dma_transpose` knows what to do with."""

    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        offset = tile(partitions, columns, dtype=nl.int32)
        nisa.dma_copy(sbuf(2, 2), data.ap([[2, 2], [1, 2]], vector_offset=offset))

    return kernel


def loading(**options: Any) -> Body:
    """Bring two rows into a tile under these options, and out of it under none."""

    def body(data: Any) -> Any:
        made, result = sbuf(2, 3), hbm(2, 3)
        nisa.dma_copy(made, data, **options)
        nisa.dma_copy(result, made)
        return result

    return body


@pytest.mark.parametrize("dge_mode", DGE, ids=lambda mode: mode.name)
def test_a_static_copy_goes_with_every_dge_mode(dge_mode: Any) -> None:
    for target in ("trn2", "trn3"):
        result = launch(loading(dge_mode=dge_mode), rows(2, 3), target=target)
        assert result.tolist() == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.parametrize("dge_mode", [mode for mode in DGE if mode is not DGE.hwdge], ids=lambda mode: mode.name)
def test_every_other_dge_mode_casts(dge_mode: Any) -> None:
    def body(data: Any) -> Any:
        result = hbm(1, 2, dtype=nl.int32)
        nisa.dma_copy(result, data, dge_mode=dge_mode)
        return result

    assert launch(body, np.array([[1.0, -7.0]], np.float32)).tolist() == [[1, -7]]


@pytest.mark.parametrize("priority", [0, 1, 2, 3, None])
def test_priorities_on_trn3(priority: Any) -> None:
    result = launch(loading(priority=priority), rows(2, 3), target="trn3")
    assert result.tolist() == [[0, 1, 2], [10, 11, 12]]


ONE_INDEX_A_ROW = (
    "operand 'src': the vector offset must have shape (2, 1), one index for each row of tensor [2, 2] float32 in "
    "private_hbm, got tensor {} int32 in sbuf"
)

UNEQUAL_SIZES = "operands 'dst' and 'src' must have equally many elements, got {dst} and {src}"


@rules(
    legal(nisa.dma_copy, dst=Hbm(2, 2), src=Sbuf(2, 2)),
    broken("PSUM source", src=Psum(2, 2)).says(must("src", f"be in {DMA_MEMORIES}", COPY_FIRST)),
    legal(nisa.dma_copy, dst=Hbm(2, 2, buffer=nl.shared_hbm), src=Sbuf(2, 2)),
    broken("PSUM destination", dst=Psum(2, 2, value=None)).says(must("dst", f"be in {DMA_MEMORIES}")),
    broken("number of elements", dst=Hbm(2, 3)).says(UNEQUAL_SIZES).fixed(dst=Hbm(4)),
    broken("a vector for all partitions", dst=Sbuf(128, 5), src=Hbm(5))
    .says(f"{UNEQUAL_SIZES}; to copy this row to all 128 partitions, pass src=src.expand_dim(0).broadcast(0, 128)")
    .fixed(src=Hbm(5).expand_dim(0).broadcast(0, 128)),
    broken("a row for all partitions", dst=Sbuf(100, 5), src=Hbm(1, 5))
    .says(f"{UNEQUAL_SIZES}; to copy this row to all 100 partitions, pass src=src.broadcast(0, 100)")
    .fixed(src=Hbm(1, 5).broadcast(0, 100)),
    broken("a row for all partitions that is on chip", dst=Sbuf(100, 5), src=Sbuf(1, 5)).says(UNEQUAL_SIZES),
    broken("rows of a gather", dst=Hbm(4, 1), src=Hbm(4, 2).vector_select(0, lazily(indices, 0, 1)))
    .says(
        "where rows are chosen or skipped 'dst' and 'src' must have equally many of them, got 4 of {dst} and 2 "
        "of tensor [4, 2] float32 in private_hbm"
    )
    .fixed(dst=Hbm(2, 2)),
    broken("hwdge with a cast", dst=Sbuf(2, 2, dtype=nl.bfloat16), dge_mode=DGE.hwdge)
    .says("dge_mode=hwdge moves bytes and casts nothing: 'dst' and 'src' must have one type, got {dst} and {src}")
    .fixed(dge_mode=DGE.swdge),
    broken("hwdge between types of one size", dst=Hbm(2, 2, dtype=nl.int32), dge_mode=DGE.hwdge)
    .says("dge_mode=hwdge moves bytes and casts nothing: 'dst' and 'src' must have one type, got {dst} and {src}")
    .fixed(src=Sbuf(2, 2).view(nl.int32)),
    legal_kernel("nisa.dma_copy", gathering, 0, 1),
    broken("gather on trn1", on="trn1").says("a vector offset needs trn2 or newer"),
    legal_kernel("nisa.dma_copy", gathering, 0, 1, dge_mode=DGE.swdge),
    broken("gather with hwdge", dge_mode=DGE.hwdge).says("a vector offset needs dge_mode unknown or swdge, got hwdge"),
    legal_kernel("nisa.dma_copy", scattering, 0, 1, dge_mode=DGE.unknown),
    broken("scatter without DGE", dge_mode=DGE.none).says("a vector offset needs dge_mode unknown or swdge, got none"),
    legal_kernel("nisa.dma_copy", copying, on="trn1", dge_mode=DGE.swdge),
    broken("hwdge on trn1", dge_mode=DGE.hwdge).says("dge_mode=hwdge needs trn2 or newer"),
    legal_kernel("nisa.dma_copy", copying),
    broken("engine without hwdge", engine=ENGINE.scalar)
    .says("engine=scalar is valid with dge_mode=hwdge only")
    .fixed(dge_mode=DGE.hwdge),
    legal_kernel("nisa.dma_copy", copying, engine=ENGINE.sync, dge_mode=DGE.hwdge),
    broken("engine with swdge", dge_mode=DGE.swdge).says("engine=sync is valid with dge_mode=hwdge only"),
    broken("engine", engine=ENGINE.gpsimd)
    .says("engine must be one of nki.isa.engine.sync, nki.isa.engine.scalar, got nki.isa.engine.gpsimd")
    .fixed(engine=ENGINE.unknown),
    legal_kernel("nisa.dma_copy", copying, on="trn3", priority=0),
    broken("priority before trn3", on="trn2").says("priority is 0 to 3 and needs trn3, got 0 on trn2"),
    broken("priority", priority=4).says("priority is 0 to 3 and needs trn3, got 4 on trn3").fixed(priority=3),
    broken("priority that is no integer", priority=1.0)
    .says("priority is 0 to 3 and needs trn3, got 1.0 on trn3")
    .fixed(priority=1),
    broken("priority that is a truth value", priority=True).says("priority is 0 to 3 and needs trn3, got True on trn3"),
    legal_kernel("nisa.dma_copy", copying, oob_mode=SKIP),
    broken("oob_mode", oob_mode="skip").says("oob_mode must be a member of nki.isa.oob_mode, got 'skip'"),
    legal_kernel("nisa.dma_copy", copying, dge_mode=DGE.hwdge),
    broken("dge_mode", dge_mode=4).says("dge_mode must be a member of nki.isa.dge_mode, got 4"),
    legal_kernel("nisa.dma_copy", pattern_of_two_rows, partitions=2, columns=1),
    broken("more indices than rows", partitions=3).says(ONE_INDEX_A_ROW.format("[3, 1]")),
    broken("several columns of indices", partitions=1, columns=2).says(ONE_INDEX_A_ROW.format("[1, 2]")),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def test_a_read_only_input_is_not_written() -> None:
    """Nor is it with a gather from it, which is allowed."""
    fixed = rows(3, 2)
    fixed.flags.writeable = False

    def scatter(data: Any) -> None:
        nisa.dma_copy(data.vector_select(0, indices(0)), tile(1, 2))

    def gather(data: Any) -> Any:
        result = hbm(1, 2)
        nisa.dma_copy(result, data.vector_select(0, indices(2)))
        return result

    with pytest.raises(nisa.NkiValidationError) as caught:
        launch(scatter, fixed)
    assert str(caught.value).endswith(
        "nisa.dma_copy: operand 'dst': tensor 'data' [1, 2] float32 in private_hbm is a read-only input and "
        "cannot be written: pass a writable array, or a torch tensor that does not require grad (.detach())"
    )
    assert launch(gather, fixed).tolist() == [[20, 21]]


# -- what is recorded ------------------------------------------------------------------------------------------------


def test_a_copy_runs_on_the_dma_engine() -> None:
    assert engine_of(lambda: nisa.dma_copy(sbuf(2, 2), tile(2, 2))) == "dma"


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        ("load", 4 * 6, 0),
        ("load with a cast", 4 * 6, 0),
        ("store", 0, 4 * 6),
        ("store with a cast", 0, 2 * 6),
        ("hbm to hbm", 4 * 6, 2 * 6),
        ("sbuf to sbuf", 0, 0),
        ("gather", 4 * 2 * 3, 0),
        ("scatter", 0, 4 * 2 * 3),
        ("gather with one row skipped", 4 * 3, 0),
        ("scatter with all rows skipped", 0, 0),
        ("select", 4 * 3, 0),
        ("select skipped", 0, 0),
    ],
)
def test_hbm_bytes(name: str, read: int, written: int) -> None:
    """Each side counts in its own type; what is skipped does not cross."""

    def body(data: Any) -> None:
        kept, narrow, made = tile(2, 3), sbuf(2, 3, dtype=nl.bfloat16), hbm(4, 3)
        two, none, mixed = (sbuf(2, 1, dtype=nl.int32) for _ in range(3))
        nisa.iota(two, [[1, 1]], 0, 1)
        nisa.iota(none, [[1, 1]], 9, 1)
        nisa.iota(mixed, [[1, 1]], 0, 9)
        copies = {
            "load": (kept, data),
            "load with a cast": (narrow, data),
            "store": (made[0:2], kept),
            "store with a cast": (hbm(2, 3, dtype=nl.float16), kept),
            "hbm to hbm": (hbm(2, 3, dtype=nl.bfloat16), data),
            "sbuf to sbuf": (sbuf(2, 3), kept),
            "gather": (kept, data.vector_select(0, two)),
            "scatter": (made.vector_select(0, two), kept),
            "gather with one row skipped": (kept, data.vector_select(0, mixed)),
            "scatter with all rows skipped": (made.vector_select(0, none), kept),
            "select": (kept[0:1], data.select(0, two[0:1])),
            "select skipped": (kept[0:1], data.select(0, none[0:1])),
        }
        dst, src = copies[name]
        nisa.dma_copy(dst, src, oob_mode=SKIP if "skipped" in name else nisa.oob_mode.error)

    with nkilib.simulator.recording() as record:
        launch(body, rows(2, 3))
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (read, written)
    assert record.instruction_counts["dma_copy"] == 1
