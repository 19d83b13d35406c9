# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``kernel.with_schedule``: what is checked of the edges; results do not depend on them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl


@nki.jit
def kernel(x: Any) -> Any:
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x, name="load")
    inverse, sum_ = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    nisa.reciprocal(inverse, tile, name="recip")
    nisa.tensor_scalar(sum_, tile, nl.add, 1, name="plus1")
    nisa.tensor_tensor(sum_, sum_, inverse, nl.add)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, sum_)
    return result


X = np.array([[1, 2, 4]], np.float32)
EXPECTED = [[3.0, 3.5, 5.25]]


@pytest.mark.parametrize(
    "schedule",
    [
        [],
        [("plus1", "recip")],
        [("plus1", ["recip", "load"])],
        [["plus1", ("recip",)]],
        (("recip", "plus1"),),  # against program order: the two are independent, and a device may choose
        [("plus1", "recip"), ("recip", "load"), ("plus1", "load")],
    ],
)
def test_a_schedule_changes_no_result(schedule: Any) -> None:
    assert kernel.with_schedule(schedule)(X).tolist() == EXPECTED
    assert kernel[1].with_schedule(schedule)(X).tolist() == EXPECTED
    assert kernel.with_schedule(schedule)[1](X).tolist() == EXPECTED


@pytest.mark.parametrize("kind", [nisa.dependency.runtime, nisa.dependency.schedule])
def test_the_kind_of_an_order_changes_no_result(kind: nisa.dependency) -> None:
    assert kernel.with_schedule([("plus1", "recip")], kind=kind)(X).tolist() == EXPECTED


def test_a_kind_is_a_member_of_dependency() -> None:
    with pytest.raises(nisa.NkiValidationError) as caught:
        kernel.with_schedule([], kind="runtime")
    assert str(caught.value) == "with_schedule: kind must be a member of nki.isa.dependency, got 'runtime'"


@nki.jit
def loops(x: Any) -> Any:
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x, name="load")

    def body(_: Any) -> None:
        nisa.tensor_scalar(tile, tile, nl.add, 1, name="plus1")
        nisa.tensor_scalar(tile, tile, nl.multiply, 2, name="twice")

    nl.fori_loop(0, 2, body)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, tile, name="store")
    return result


@pytest.mark.parametrize(("consumer", "producer"), [("plus1", "load"), ("twice", "plus1"), ("store", "load")])
def test_the_hardware_waits_within_a_loop_or_for_what_is_around_it(consumer: str, producer: str) -> None:
    launch = loops.with_schedule([(consumer, producer)], kind=nisa.dependency.runtime)
    assert launch(X).tolist() == ((X + 1) * 4 + 2).tolist()


def test_the_hardware_does_not_wait_for_what_a_loop_keeps_to_itself() -> None:
    """The order in which a compiler issues them may be asked for."""
    with pytest.raises(nisa.NkiValidationError) as caught:
        loops.with_schedule([("store", ["load", "twice"])], kind=nisa.dependency.runtime)(X)
    assert str(caught.value) == (
        "loops: with_schedule: 'store' cannot wait for 'twice', which is in a dynamic loop that 'store' is not in; "
        "both must be in the same loop, or the producer around it"
    )
    loops.with_schedule([("store", "twice")], kind=nisa.dependency.schedule)(X)
    loops.with_schedule([("store", "twice")])(X)


def test_a_schedule_stays_with_the_grid_that_is_given_after_it() -> None:
    scheduled = kernel.with_schedule([("plus1", "no such name")])
    for launch in (scheduled, scheduled[1], kernel[1].with_schedule([("plus1", "no such name")])):
        with pytest.raises(nisa.NkiValidationError, match="with_schedule names 'no such name'"):
            launch(X)


def test_the_kernel_itself_has_no_schedule() -> None:
    kernel.with_schedule([("no such name", "recip")])
    assert kernel(X).tolist() == EXPECTED


def refused(schedule: Any) -> str:
    with pytest.raises(nisa.NkiValidationError) as caught:
        kernel.with_schedule(schedule)(X)
    return str(caught.value)


def test_names_that_no_instruction_has() -> None:
    known = "names in this launch: 'load', 'plus1', 'recip'"
    for schedule in ([("plus2", "recip")], [("recip", ["load", "plus2"])]):
        assert refused(schedule) == (f"kernel: with_schedule names 'plus2', but no instruction has that name=; {known}")


def test_a_name_may_belong_to_one_core_only() -> None:
    def uneven(x: Any) -> Any:
        if nl.program_id(0) == 1:
            nisa.memset(nl.ndarray((1, 1), nl.float32), 0, name="second core only")
        return x

    assert nki.jit(uneven)[2].with_schedule([("second core only", [])])(X) is X


@pytest.mark.parametrize("schedule", ["ab", 3, None])
def test_a_schedule_is_a_list(schedule: Any) -> None:
    assert refused(schedule) == f"with_schedule: the schedule must be a list of pairs of names, got {schedule!r}"


@pytest.mark.parametrize("edge", ["ab", ("a",), ("a", "b", "c"), ("a", 3), (3, "a"), ("a", ["b", 3]), None])
def test_an_edge_is_a_pair_of_names(edge: Any) -> None:
    assert refused([edge]) == (
        f"with_schedule: an edge must be (name, name) or (name, [names]), the names= of instructions; got {edge!r}"
    )


def test_edges_do_not_run_in_a_circle() -> None:
    assert refused([("recip", "recip")]) == "with_schedule: the edges run in a circle: 'recip' after 'recip'"
    message = refused([("plus1", "recip"), ("recip", "load"), ("load", "plus1")])
    assert message.startswith("with_schedule: the edges run in a circle: ")
    circle = message.partition("circle: ")[2].split(" after ")
    assert circle[0] == circle[-1] and set(circle) == {"'load'", "'plus1'", "'recip'"}
    after = {"'plus1'": "'recip'", "'recip'": "'load'", "'load'": "'plus1'"}
    assert all(after[name] == next_ for name, next_ in itertools.pairwise(circle))
