# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""One unfinished group of products at most in a bank of PSUM: what is refused, what is not, and the messages."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import PsumGroupError, SimulatorWarning, spec
from nkilib.simulator.machine.core import current_core
from nkilib.simulator.machine.levels import forget_warnings
from nkilib.simulator.machine.psum_groups import PsumGroups
from tests.simulator.kernels import execute, normal, store, tile

PSUM = nl.psum
K, TILES, ROWS = 3, 4, 128


def lines_of(function: Callable[..., Any], text: str) -> list[int]:
    """The lines of a function of this file that hold `text`."""
    source, first = inspect.getsourcelines(function)
    return [first + number for number, line in enumerate(source) if text in line]


def psum(*shape: int, address: tuple[int, int] | None = None, dtype: Any = nl.float32) -> Any:
    """Make a new PSUM tensor, unwritten, in a kernel."""
    return nl.ndarray(shape, dtype, PSUM, address=address)


def product(dst: Any, accumulate: bool | None = None, **options: Any) -> None:
    """Run one more product of ones for each element of ``dst``, in a kernel."""
    ones = tile(1, dst.shape[0], value=1), tile(1, *dst.shape[1:], value=1)
    nisa.nc_matmul(dst, *ones, accumulate=accumulate, **options)


def refused(body: Callable[[], Any], target: str = "trn2", cores: int = 1) -> str:
    """The message of the refusal of `body()`."""
    with pytest.raises(PsumGroupError) as caught:
        execute(body, target, cores)
    return str(caught.value)


# -- the kernel that was found, and its corrected twins --------------------------------------------------------------


def loaded(x: Any, w: Any) -> tuple[Any, Any]:
    """Load x [K * 128, TILES * 128] and w [K * 128, 1] in a kernel as tiles of 128 partitions, the step of k second."""

    def tiled(source: Any) -> Any:
        made = nl.ndarray((ROWS, K, source.shape[1]), nl.float32)
        nisa.dma_copy(made, source.reshape((K, ROWS, source.shape[1])).permute((1, 0, 2)))
        return made

    return tiled(x), tiled(w)


@nki.jit
def interleaved(x: Any, w: Any) -> Any:
    """x.T @ w: four tiles of rows alternate, k outside, in the columns of one PSUM tile."""
    left, right = loaded(x, w)
    sums = psum(ROWS, TILES)
    for k in range(K):
        for at in range(TILES):
            columns = slice(at * ROWS, at * ROWS + ROWS)
            nisa.nc_matmul(sums[:, at : at + 1], left[:, k, columns], right[:, k, :], accumulate=k > 0)
    return store(sums)


@nki.jit
def a_tile_each(x: Any, w: Any) -> Any:
    """The same with a PSUM tile for each group."""
    left, right = loaded(x, w)
    sums = [psum(ROWS, 1) for _ in range(TILES)]
    for k in range(K):
        for at in range(TILES):
            columns = slice(at * ROWS, at * ROWS + ROWS)
            nisa.nc_matmul(sums[at], left[:, k, columns], right[:, k, :], accumulate=k > 0)
    result = nl.ndarray((ROWS, TILES), nl.float32)
    for at in range(TILES):
        nisa.tensor_copy(result[:, at : at + 1], sums[at])
    return store(result)


@nki.jit
def one_after_the_other(x: Any, w: Any) -> Any:
    """The same with each group finished before the next one starts."""
    left, right = loaded(x, w)
    sums = psum(ROWS, TILES)
    for at in range(TILES):
        for k in range(K):
            columns = slice(at * ROWS, at * ROWS + ROWS)
            nisa.nc_matmul(sums[:, at : at + 1], left[:, k, columns], right[:, k, :], accumulate=k > 0)
    return store(sums)


def operands() -> tuple[Any, Any, Any]:
    x, w = normal(K * ROWS, TILES * ROWS), normal(K * ROWS, 1, seed=1)
    exact = x.astype(np.float64).T @ w.astype(np.float64)
    return x, w, exact.reshape(TILES, ROWS).T


def test_groups_that_alternate_in_a_bank_are_refused_with_both_matmuls_and_the_bank() -> None:
    x, w, _ = operands()
    with pytest.raises(PsumGroupError) as caught:
        interleaved(x, w)
    (line,) = lines_of(interleaved.func, "nisa.nc_matmul(")
    assert str(caught.value) == (
        f"{__file__}:{line}: nisa.nc_matmul: goes on with the group of products in [128, 1] float32, bytes 0 to 4 of "
        f"PSUM bank 0 of tensor [128, 4] float32 in psum, after nisa.nc_matmul at {__file__}:{line} has started "
        "another group in this bank, in [128, 1] float32, bytes 12 to 16: a bank (2048 bytes of each partition) holds "
        "at most one unfinished group, and on hardware what the first one had summed is lost; give each group a PSUM "
        "tile of its own, or finish one before the next one starts; using(psum_groups='ignore') or "
        "NKILIB_PSUM_GROUPS=ignore runs the kernel"
    )


@pytest.mark.parametrize("kernel", [a_tile_each, one_after_the_other], ids=["tiles", "order"])
def test_the_corrected_kernels_run_and_are_right(kernel: Any) -> None:
    x, w, exact = operands()
    # 384 products of two numbers of about 1, each sum rounded once.
    np.testing.assert_allclose(kernel(x, w), exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("level", ["warn", "ignore"])
def test_the_level_is_set_by_the_variable(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning for the pair of lines once, at the line that goes on; the sums are those of the documentation."""
    monkeypatch.setenv("NKILIB_PSUM_GROUPS", level)
    forget_warnings()
    x, w, exact = operands()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = interleaved(x, w)
        interleaved(x, w)
    np.testing.assert_allclose(result, exact, rtol=0, atol=2e-4)
    assert [(item.category, item.filename) for item in caught] == [(SimulatorWarning, __file__)] * (level == "warn")
    assert [item.lineno for item in caught] == lines_of(interleaved.func, "nisa.nc_matmul(") * (level == "warn")


def observed() -> PsumGroups | None:
    return current_core("this test").observers.find(PsumGroups)


def test_nobody_watches_where_it_is_ignored() -> None:
    with nkilib.simulator.using(psum_groups="ignore"):
        assert execute(lambda: (observed() is None and None, 1)[1]) == 1
        seen: list[Any] = []
        execute(lambda: seen.append(observed()))
    with nkilib.simulator.using(psum_groups="error"):
        execute(lambda: seen.append(observed()))
    assert seen[0] is None
    assert isinstance(seen[1], PsumGroups)


@pytest.mark.parametrize(("level", "is_replayed"), [("warn", False), ("ignore", True)])
def test_a_launch_that_is_warned_of_is_not_replayed_and_others_are(level: str, is_replayed: bool) -> None:
    x, w, exact = operands()
    with nkilib.simulator.using(psum_groups=level, replay="always"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kernel in (interleaved, a_tile_each):
            before = replayed(kernel)
            for _ in range(6):
                np.testing.assert_allclose(kernel(x, w), exact, rtol=0, atol=2e-4)
            assert (replayed(kernel) > before) == (is_replayed or kernel is a_tile_each)


def replayed(kernel: Any) -> int:
    """How many launches of a kernel ran from a plan."""
    counts = nkilib.simulator.replay_counts().kernels.get(kernel.__name__)
    return 0 if counts is None else counts.replayed


# -- what starts a group, and what goes on with it ------------------------------------------------------------------


def test_accumulate_none_starts_a_group_on_what_no_matmul_has_written() -> None:
    def body() -> None:
        sums = psum(8, 16)
        product(sums[:, :4])
        product(sums[:, 4:8])
        product(sums[:, :4])

    assert "in [8, 4] float32, bytes 0 to 16 of PSUM bank 0" in refused(body)


def test_the_group_that_started_last_may_be_gone_on_with_and_a_finished_one_read() -> None:
    def body() -> Any:
        sums = psum(8, 16)
        for first in (0, 4, 8, 12):
            for _ in range(3):
                product(sums[:, first : first + 4])
        return store(sums)

    np.testing.assert_array_equal(execute(body), np.full((8, 16), 3))


def test_a_group_may_be_gone_on_with_in_parts_of_what_started_it() -> None:
    def body() -> Any:
        sums = psum(8, 16)
        product(sums, False)
        for columns in (slice(0, 8), slice(8, 16), slice(1, 16, 5), slice(0, 8)):
            product(sums[:, columns], True)
        return store(sums)

    expected = np.full((8, 16), 2)
    expected[:, 1:16:5] += 1
    expected[:, :8] += 1
    np.testing.assert_array_equal(execute(body), expected)


def test_a_matmul_that_adds_to_some_elements_starts_no_group_with_the_others() -> None:
    def body() -> Any:
        sums = psum(8, 16)
        product(sums[:, :4], False)
        product(sums[:, :8])
        product(sums[:, :4], True)
        return store(sums[:, :8])

    np.testing.assert_array_equal(execute(body), [[3] * 4 + [1] * 4] * 8)


def test_columns_that_interleave_without_meeting_are_groups_of_their_own() -> None:
    def body() -> None:
        sums = psum(8, 16)
        product(sums[:, 0::2], False)
        product(sums[:, 1::2], False)
        product(sums[:, 0::2], True)

    assert "in [8, 8] float32, bytes 0 to 60 of PSUM bank 0 of tensor [8, 16] float32" in refused(body)


def test_groups_in_other_partitions_do_not_end_each_other() -> None:
    """Public kernels alternately add to column tiles of the Tensor engine in the same bank."""

    def body() -> Any:
        sums = psum(128, 8)
        for step in range(8):
            first = step % 4 * 32
            product(sums[first : first + 32, :], tile_position=(0, first), tile_size=(128, 32))
        return store(sums)

    np.testing.assert_array_equal(execute(body), np.full((128, 8), 2))


def test_one_partition_in_common_is_enough() -> None:
    def body() -> None:
        sums = psum(128, 8)
        product(sums[32:40, :4], False)
        product(sums[64:96, 4:], False)
        product(sums[32:40, :4], True)
        product(sums[0:33, 4:], False)
        product(sums[32:40, :4], True)

    message = refused(body)
    assert "goes on with the group of products in [8, 4] float32, bytes 0 to 16" in message
    assert "has started another group in this bank, in [33, 4] float32, bytes 16 to 32" in message


# -- what else writes into a bank -----------------------------------------------------------------------------------


def between(write: Callable[[Any], Any], target: str = "trn2") -> Callable[[], None]:
    """A kernel in which `write(the other half of the bank)` comes between two matmuls of a group."""

    def body() -> None:
        sums = psum(32, 64)
        product(sums[:, :32], False)
        write(sums[:, 32:])
        product(sums[:, :32], True)

    return body


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_transpose_by_the_tensor_engine_starts_a_group(target: str) -> None:
    by_engine = between(lambda other: nisa.nc_transpose(other, tile(32, 32), engine=nisa.engine.tensor))
    assert "after nisa.nc_transpose at " in refused(by_engine, target)

    def move(other: Any) -> None:
        identity = tile(32, 32)
        nisa.affine_select(identity, [[-1, 32]], 1, tile(32, 32, value=1), 0, nl.equal)
        nisa.nc_matmul(other, tile(32, 32), identity, is_transpose=True)

    assert "after nisa.nc_matmul at " in refused(between(move), target)


def test_what_other_engines_write_starts_none_and_ends_none() -> None:
    for write in (
        lambda other: nisa.memset(other, 1),
        lambda other: nisa.tensor_copy(other, tile(32, 32)),
        lambda other: nisa.nc_transpose(other, tile(32, 32), engine=nisa.engine.vector),
        lambda other: nisa.activation(other, nl.exp, tile(32, 32)),
    ):
        with nkilib.simulator.recording() as record:
            execute(between(write))
        assert record.instruction_counts["nc_matmul"] == 2


@pytest.mark.parametrize("columns", [slice(0, 16), slice(0, 4)], ids=["whole", "part"])
def test_after_another_engine_has_written_the_elements_no_accumulation_restarts(columns: slice) -> None:
    def body() -> Any:
        sums = psum(8, 16)
        product(sums[:, :4])
        product(sums[:, 4:8])
        nisa.memset(sums[:, columns], 7)
        product(sums[:, :4])
        product(sums[:, :4])
        return store(sums[:, :4])

    np.testing.assert_array_equal(execute(body), np.full((8, 4), 2))


def test_on_trn3_what_another_engine_wrote_is_added_to_without_a_start() -> None:
    """Such a product ends no other group, but its sum cannot be continued after a group that starts later."""

    def body() -> Any:
        sums = psum(8, 16)
        product(sums[:, 4:8], False)
        nisa.memset(sums[:, :4], 7)
        product(sums[:, :4])
        product(sums[:, 4:8], True)
        return store(sums[:, :8])

    np.testing.assert_array_equal(execute(body, "trn3"), [[8] * 4 + [2] * 4] * 8)

    def ended() -> None:
        sums = psum(8, 16)
        nisa.memset(sums, 7)
        product(sums[:, :4])
        product(sums[:, 4:8], False)
        product(sums[:, :4])

    assert "bytes 0 to 16 of PSUM bank 0" in refused(ended, "trn3")


def test_a_copy_that_leaves_elements_as_they_were_changes_no_group() -> None:
    def body() -> None:
        sums = psum(8, 8)
        product(sums[:, :4], False)
        nisa.tensor_copy_predicated(sums[:, :4], tile(8, 4), tile(8, 4, dtype=nl.uint8))
        product(sums[:, 4:], False)
        product(sums[:, :4])

    message = refused(body)
    assert "goes on with the group of products in [8, 4] float32, bytes 0 to 16 of PSUM bank 0" in message
    assert "has started another group in this bank, in [8, 4] float32, bytes 16 to 32" in message


def test_matmuls_of_mx_matrices_are_matmuls() -> None:
    def multiply(dst: Any, accumulate: bool) -> None:
        words = [tile(32, count, dtype=nl.uint32, value=0).view(nl.float8_e4m3fn_x4) for count in (8, 4)]
        scales = [tile(32, count, dtype=nl.uint8, value=127) for count in (8, 4)]
        nisa.nc_matmul_mx(dst, *words, *scales, accumulate=accumulate)

    def body(order: str) -> None:
        sums = psum(8, 8)
        starts = dict(a=True, b=True)
        for name in order:
            multiply(sums[:, :4] if name == "a" else sums[:, 4:], not starts.pop(name, False))

    execute(lambda: body("aabb"), "trn3")
    assert "nisa.nc_matmul_mx: goes on" in refused(lambda: body("abab"), "trn3")


# -- banks ----------------------------------------------------------------------------------------------------------


def test_tensors_that_the_kernel_does_not_place_have_banks_of_their_own() -> None:
    def body() -> None:
        one, two = psum(128, 4), psum(128, 4)
        for step in range(2):
            product(one, step > 0)
            product(two, step > 0)

    with nkilib.simulator.recording() as record:
        execute(body)
    assert record.instruction_counts["nc_matmul"] == 4


def test_a_tensor_of_several_banks_has_a_group_in_each() -> None:
    def body(*places: int) -> None:
        sums = psum(128, 2048)
        for step in range(2):
            for place in places:
                product(sums[:, place : place + 256], step > 0)

    execute(lambda: body(0, 512, 1024, 1536))
    message = refused(lambda: body(0, 512, 768, 1536))
    assert "bytes 0 to 1024 of PSUM bank 1 of tensor [128, 2048] float32 in psum, after nisa.nc_matmul" in message
    assert "in [128, 256] float32, bytes 1024 to 2048: a bank" in message


def test_tensors_at_the_same_bank_share_it_where_their_partitions_overlap() -> None:
    def body(partition: int, bank: int) -> None:
        one, two = psum(64, 4, address=(0, 2048)), psum(32, 8, address=(partition, 2048 * bank))
        for step in range(2):
            product(one, step > 0)
            product(two, step > 0)

    execute(lambda: body(64, 1))
    execute(lambda: body(32, 2))
    with nkilib.simulator.using(capacity="ignore"):
        message = refused(lambda: body(32, 1))
    assert "in [64, 4] float32, bytes 0 to 16 of PSUM bank 1, after" in message
    assert "in [32, 8] float32, bytes 0 to 32: a bank" in message


def test_a_result_over_several_banks_of_trn3_is_a_group_in_all_of_them() -> None:
    def body(first: int) -> None:
        sums = psum(8, 2048)
        product(sums[:, :1024], False)
        product(sums[:, first : first + 4], False)
        product(sums[:, :1024], True)

    execute(lambda: body(1024), "trn3")
    message = refused(lambda: body(1020), "trn3")
    assert "in [8, 1024] float32, bytes 0 to 2048 of PSUM bank 1 of" in message
    assert "in [8, 4] float32, bytes 2032 to 2048: a bank" in message


def test_of_a_result_over_several_banks_each_bank_counts_by_itself() -> None:
    """Bank 1 restarts after bank 0, and both continue in one matmul: nothing is lost."""

    def body() -> Any:
        sums = psum(8, 1024)
        product(sums, False)
        product(sums[:, 512:], False)
        product(sums, True)
        return store(sums)

    np.testing.assert_array_equal(execute(body, "trn3"), np.full((8, 1024), 2))


def test_a_start_in_other_partitions_hides_no_earlier_one() -> None:
    def body() -> None:
        sums = psum(64, 8)
        product(sums[:32, :4], False)
        product(sums[:32, 4:], False)
        product(sums[32:, :], False)
        product(sums[:32, :4], True)

    assert "has started another group in this bank, in [32, 4] float32" in refused(body)


def test_views_of_other_types_overlap_in_their_bytes() -> None:
    """The upper half of the first float32 of each partition is the second bfloat16, with which a group starts."""

    def body(goes_on: Callable[[Any], Any]) -> None:
        sums = psum(8, 8)
        product(sums[:, :4], False)
        product(sums[:, 2:4], True)  # an overlap, for which the elements are looked at by themselves
        product(sums[:, :4], True)
        product(sums.view(nl.bfloat16)[:, 1:2], False)
        product(goes_on(sums))

    execute(lambda: body(lambda sums: sums.view(nl.bfloat16)[:, 1:2]), "trn3")
    message = refused(lambda: body(lambda sums: sums[:, :1]), "trn3")
    assert "goes on with the group of products in [8, 1] float32, bytes 0 to 4 of" in message
    assert "in [8, 1] bfloat16, bytes 2 to 4: a bank" in message


def test_a_strided_result_leaves_banks_between_its_elements_alone() -> None:
    def body(between_elements: int) -> None:
        sums = psum(8, 2048)
        product(sums[:, between_elements : between_elements + 8], False)
        product(sums[:, 0:2048:1024], False)  # banks 0 and 2
        product(sums[:, between_elements : between_elements + 8], True)

    execute(lambda: body(512), "trn3")
    assert "PSUM bank 2 of tensor" in refused(lambda: body(1032), "trn3")


# -- loops, launches without data, cores, names ---------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 2, 100])
def test_in_a_loop_of_the_device_the_sums_of_one_tile_go_on(iterations: int) -> None:
    """The first group is continued from the second iteration on; launches without data run few iterations."""

    def kernel(x: Any, count: int, is_apart: bool) -> None:
        sums = psum(8, 1024)
        second = 512 if is_apart else 4
        for first in (0, second):
            product(sums[:, first : first + 4], False)

        def body(_: Any) -> None:
            for first in (second, 0) if is_apart else (second, second):
                product(sums[:, first : first + 4], True)

        nl.fori_loop(0, count, body)

    jitted = nki.jit(kernel)
    for given_x in (np.zeros((4, 4), np.float32), spec((4, 4), nl.float32)):
        jitted(given_x, iterations, True)
        jitted(given_x, iterations, False)

        @nki.jit
        def wrong(x: Any) -> None:
            sums = psum(8, 8)

            def body(_: Any) -> None:
                product(sums[:, :4], True)

            product(sums[:, :4], False)
            nl.fori_loop(0, iterations, body)
            product(sums[:, 4:], False)
            nl.fori_loop(0, iterations, body)

        with pytest.raises(PsumGroupError, match=r"nisa\.nc_matmul: goes on with the group of products in \[8, 4\]"):
            wrong(given_x)


def test_a_model_of_a_kernel_on_shapes_alone_refuses_it_too() -> None:
    with pytest.raises(PsumGroupError, match=r"bytes 0 to 4 of PSUM bank 0"):
        nkilib.simulator.profile(
            interleaved, spec((K * ROWS, TILES * ROWS), nl.float32), spec((K * ROWS, 1), nl.float32)
        )
    nkilib.simulator.profile(a_tile_each, spec((K * ROWS, TILES * ROWS), nl.float32), spec((K * ROWS, 1), nl.float32))


def test_without_data_accumulate_none_starts_groups_as_with_data() -> None:
    @nki.jit
    def kernel(x: Any, order: str) -> None:
        sums = psum(8, 8)
        for name in order:
            product(sums[:, :4] if name == "a" else sums[:, 4:])

    for given_x in (np.zeros((4, 4), np.float32), spec((4, 4), nl.float32)):
        kernel(given_x, "aaabbb")
        with pytest.raises(PsumGroupError):
            kernel(given_x, "aba")


def test_each_core_has_banks_of_its_own_and_the_message_names_it_and_the_instruction() -> None:
    def body(core: int) -> None:
        one, two = psum(8, 4, address=(0, 0)), psum(8, 4, address=(0, 2048))
        for step in range(2):
            for dst in (one, two):
                product(dst, step > 0, name="sum")
        if nl.program_id(0) == core:
            sums = psum(8, 8)
            product(sums[:, :4], False)
            product(sums[:, 4:], False)
            product(sums[:, :4], True, name="late")

    execute(lambda: body(2), cores=2)
    for core in (0, 1):
        message = refused(lambda: body(core), cores=2)  # noqa: B023
        assert f": nisa.nc_matmul (name='late') on core {core}: goes on with" in message
        assert message.count(__file__) == 2


def test_tensors_that_the_kernel_drops_are_forgotten() -> None:
    def body() -> None:
        kept = []
        for number in range(1000):
            sums = psum(8, 4)
            product(sums)
            nisa.tensor_copy(nl.ndarray((8, 4), nl.float32), sums)  # a sum that is read waits for nobody any more
            if number % 100 == 0:
                kept.append(sums)
        watching = observed()
        assert watching is not None
        assert len(kept) <= len(watching._tiles) <= 200

    execute(body)
