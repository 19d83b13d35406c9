# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A kernel cannot use tensors, registers and instructions of another launch, another core or a loop that has ended."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, per_rank, ranks
from tests.hangs import HANG_SECONDS

from ..frame import in_time, refused, run
from ..kernels import load, store, tile

X = np.arange(16, dtype=np.float32).reshape(4, 4)
ANOTHER_LAUNCH = (
    "belongs to another launch, and a variable outside of the kernel or a cache has kept it; a launch uses its "
    "arguments and what it makes itself"
)
OTHER_CORE = (
    "belongs to the other core; cores exchange data in nl.shared_hbm, ordered by nisa.core_barrier, or with "
    "nisa.sendrecv"
)
IN_LOOP = (
    "was made in the body of a dynamic loop, or in another iteration of it, and cannot be used here; make it before "
    "the loop"
)


def filled(buffer: Any) -> Any:
    made = nl.ndarray((4, 4), nl.float32, buffer, name="kept")
    nisa.dma_copy(made, tile(4, 4)) if made.buffer is not nl.psum else nisa.memset(made, 0)
    return made


def read(tensor: Any) -> Any:
    if tensor.buffer is nl.psum:
        return nisa.tensor_copy(nl.ndarray((4, 4), nl.float32, nl.sbuf), tensor)
    return nisa.dma_copy(nl.ndarray((4, 4), nl.float32, nl.private_hbm), tensor)


def written(tensor: Any) -> Any:
    if tensor.buffer is nl.psum:
        return nisa.memset(tensor, 1)
    return nisa.dma_copy(tensor, tile(4, 4))


def index_of(_: Any = None) -> Any:
    return tile(2, 1, dtype=nl.int32)


def gathered(index: Any) -> Any:
    source = nl.zeros((8, 4), nl.float32, nl.private_hbm)
    return nisa.dma_copy(nl.ndarray((2, 4), nl.float32, nl.sbuf), source.vector_select(0, index))


def offset_of(_: Any = None) -> Any:
    return tile(1, 1, dtype=nl.int32)


def selected(offset: Any) -> Any:
    return nisa.tensor_copy(tile(4, 1), tile(4, 8).select(1, offset).expand_dim(1))


def scalar_of(_: Any = None) -> Any:
    return nisa.scalar_load(tile(1, 1, dtype=nl.int32))


def register_of(_: Any = None) -> Any:
    return nisa.register_alloc(2)


def instruction_of(_: Any = None) -> Any:
    return nisa.memset(nl.ndarray((1, 1), nl.float32, nl.sbuf), 0)


def ordered(kind: Any) -> Callable[[Any], Any]:
    return lambda producer: instruction_of().depends_on(producer, kind=kind)


REGIONS = {"sbuf": nl.sbuf, "psum": nl.psum, "private_hbm": nl.private_hbm}
# Of each: what makes something of a core, and what uses it in an instruction or a loop.
OF_A_CORE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    **{f"read in {name}": (functools.partial(filled, region), read) for name, region in REGIONS.items()},
    **{f"written in {name}": (functools.partial(filled, region), written) for name, region in REGIONS.items()},
    "a view": (lambda: filled(nl.sbuf)[0:2], lambda view: nisa.tensor_copy(tile(2, 4), view)),
    "rows of a gather": (index_of, gathered),
    "an offset": (offset_of, selected),
    "a printed tile": (lambda: filled(nl.sbuf), lambda kept: nl.device_print("kept", kept)),
    "a scalar that is stored": (scalar_of, lambda kept: nisa.scalar_store(tile(1, 1, dtype=nl.int32), kept)),
    "a scalar in a sum": (scalar_of, lambda kept: kept + scalar_of()),
    "a scalar in an address": (scalar_of, selected),
    "a bound of a loop": (scalar_of, lambda kept: nl.fori_loop(0, kept, lambda i: None)),
    "a register that is stored": (register_of, lambda kept: nisa.register_store(tile(1, 1, dtype=nl.int32), kept)),
    "a register that is written": (register_of, lambda kept: nisa.register_move(kept, 1)),
    "a register that is loaded": (register_of, lambda kept: nisa.register_load(kept, tile(1, 1, dtype=nl.int32))),
    "a register as a bound": (register_of, lambda kept: nl.fori_loop(0, kept, lambda i: None)),
    "an edge": (instruction_of, ordered(nisa.dependency.runtime)),
    "an edge of the schedule": (instruction_of, ordered(nisa.dependency.schedule)),
}


@pytest.mark.parametrize("way", OF_A_CORE)
def test_what_an_earlier_launch_has_left_is_refused(way: str) -> None:
    make, use = OF_A_CORE[way]
    kept: list[Any] = []

    def kernel(keeps: bool) -> None:
        if keeps or not kept:
            kept[:] = [make()]
        use(kept[0])

    nki.jit(kernel)(True)
    nki.jit(kernel)(True)  # makes its own
    assert refused(NkiValidationError, lambda: nki.jit(kernel)(False)).endswith(ANOTHER_LAUNCH)


@pytest.mark.parametrize("way", OF_A_CORE)
def test_what_the_other_core_has_made_is_refused(way: str) -> None:
    make, use = OF_A_CORE[way]

    def kernel(takes_own: bool) -> None:
        shared, core = nl.ndarray((1, 1), nl.float32, nl.shared_hbm), nl.program_id(0)
        made[core] = make()
        nisa.core_barrier(shared, (0, 1))
        use(made[core if takes_own else 0])

    made: dict[int, Any] = {}
    nki.jit(kernel)[2](True)
    error = in_time(lambda: nki.jit(kernel)[2](False))
    assert type(error) is NkiValidationError and str(error).endswith(OTHER_CORE)


def test_shared_tensors_arguments_and_constants_are_on_both_cores() -> None:
    """Each core uses the objects that the other one has made."""

    def kernel(x: Any) -> Any:
        core, result = nl.program_id(0), nl.ndarray((4, 4), nl.float32, nl.shared_hbm)
        made[core] = [x, nl.shared_constant(X), result]
        nisa.core_barrier(result, (0, 1))
        source, constant, target = made[1 - core]
        rows = slice(2 * core, 2 * core + 2)
        total = load(source[rows])
        nisa.tensor_tensor(total, total, load(constant[rows]), nl.add)
        nisa.dma_copy(target[rows], total)
        return result

    made: dict[int, Any] = {}
    np.testing.assert_array_equal(run(kernel, X, cores=2), 2 * X)


@pytest.mark.parametrize("what", ["argument", "shared_hbm", "constant"])
@pytest.mark.parametrize("use", [read, store, lambda kept: kept], ids=["read", "stored", "returned"])
@pytest.mark.parametrize("cores", [1, 2])
def test_hbm_of_an_earlier_launch_is_refused(what: str, use: Any, cores: int) -> None:
    kept: dict[int, Any] = {}

    def kernel(x: Any, keeps: bool) -> Any:
        if keeps:
            makers = {"argument": lambda: x, "constant": lambda: nl.shared_constant(X)}
            kept[nl.program_id(0)] = makers.get(what, lambda: filled(nl.shared_hbm))()
        result = use(kept[nl.program_id(0)])
        return None if use is read else result

    with nkilib.simulator.using(races="ignore"):
        nki.jit(kernel)[cores](X, True)
        message = refused(NkiValidationError, lambda: nki.jit(kernel)[cores](X, False))
    assert message.endswith(ANOTHER_LAUNCH)


def test_a_cached_tile_is_refused_and_a_tile_of_each_launch_is_not() -> None:
    """The mistake as people make it: a helper that is cached for speed."""

    def ones(shape: tuple[int, int]) -> Any:
        return tile(*shape, value=1)

    cached = functools.cache(ones)

    def kernel(x: Any, make: Any) -> Any:
        total = load(x)
        nisa.tensor_tensor(total, total, make((4, 4)), nl.add)
        return store(total)

    np.testing.assert_array_equal(run(kernel, X, cached), X + 1)
    message = refused(NkiValidationError, lambda: run(kernel, X, cached))
    assert message.endswith(f"operand 'data2': tensor [4, 4] float32 in sbuf {ANOTHER_LAUNCH}")
    for _ in range(2):
        np.testing.assert_array_equal(run(kernel, X, ones), X + 1)


def test_a_tensor_of_a_launch_is_no_argument_of_the_next() -> None:
    kept: list[Any] = []
    run(lambda x: kept.append(x), X)
    message = refused(NkiValidationError, lambda: run(lambda a, b: store(load(a)), X, kept))
    assert message == (f"<lambda>: argument 'b[0]': tensor 'x' [4, 4] float32 in private_hbm {ANOTHER_LAUNCH}")


def test_a_tensor_of_another_rank_is_refused() -> None:
    """Ranks have memory of their own, although they run at the same time and in one process."""
    made: dict[int, Any] = {}

    def kernel(rank: int, taken: int) -> None:
        made[rank] = filled(nl.sbuf)
        group = nki.collectives.ReplicaGroup([[0, 1]])
        nki.collectives.all_reduce([tile(1, 4)], [tile(1, 4)], replica_group=group, op=nl.add)
        read(made[taken])

    group = ranks(2, timeout=HANG_SECONDS)(nki.jit(kernel))
    group(per_rank([0, 1]), per_rank([0, 1]))
    error = in_time(lambda: group(per_rank([0, 1]), per_rank([0, 0])))
    assert isinstance(error, NkiValidationError) and "on rank 1" in str(error) and ANOTHER_LAUNCH in str(error)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm], ids=str)
def test_tensors_of_a_loop_end_with_their_iteration_in_every_memory(buffer: Any, cores: int) -> None:
    def kernel(is_kept: bool) -> None:
        made: list[Any] = []

        def body(_: Any) -> None:
            if not is_kept:
                made.clear()
            made.append(filled(buffer))
            read(made[0])

        nl.fori_loop(0, 2, body)

    with nkilib.simulator.using(races="ignore"):
        nki.jit(kernel)[cores](False)
        assert refused(NkiValidationError, lambda: nki.jit(kernel)[cores](True)).endswith(IN_LOOP)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_result_is_made_outside_of_dynamic_loops(cores: int) -> None:
    def kernel(x: Any, is_inside: bool) -> Any:
        results = [] if is_inside else [nl.ndarray((4, 4), nl.float32, nl.shared_hbm)]

        def body(_: Any) -> None:
            if is_inside:
                results.append(nl.ndarray((4, 4), nl.float32, nl.shared_hbm))
            nisa.dma_copy(results[-1], load(x))

        nl.fori_loop(0, 2, body)
        return results[-1]

    np.testing.assert_array_equal(run(kernel, X, False, cores=cores), X)
    message = refused(NkiValidationError, lambda: run(kernel, X, True, cores=cores))
    assert message == (
        f"kernel: a kernel returns tensors that it can use at its end: tensor [4, 4] float32 in shared_hbm {IN_LOOP}"
    )


def test_a_launch_on_shapes_and_one_that_skips_arithmetic_refuse_them_too() -> None:
    kept: list[Any] = []

    def kernel(x: Any, keeps: bool) -> Any:
        if keeps:
            kept[:] = [load(x)]
        return store(kept[0])

    run(kernel, X, True)
    skipping = nkilib.simulator.simulate(nki.jit(kernel), skip_arithmetic=True)
    for launch, x in ((nki.jit(kernel), nkilib.simulator.spec((4, 4), nl.float32)), (skipping, X)):
        launch(x, True)
        kept_by_it = kept[0]
        assert refused(NkiValidationError, lambda call=launch, x=x: call(x, False)).endswith(ANOTHER_LAUNCH)
        kept[:] = [kept_by_it]
