# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of a launch besides its arguments: keywords of ``nki.jit``, ``kernel.with_schedule``, and the environment.

A launch reads its environment, grid and options once, makes no new kernel, and leaves no garbage in a circle.
"""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.base import lnc
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError
from nkilib.simulator.hardware import options
from nkilib.simulator.launch import settings as place
from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.launch.settings import LaunchEnvironment
from tests.simulator.frame import counted, refused, without_line

CompileConfig = nki.compiler.CompileConfig
SpecializationConfig = nki.compiler.SpecializationConfig

X = counted(4, 8)


def add_one(x: Any) -> Any:
    """Make a new HBM tensor with the elements of ``x``, and 1 more each, in a kernel."""
    tile = nl.load(x)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.tensor_scalar(tile, tile, op0=nl.add, operand0=1.0)
    nl.store(result, tile)
    return result


def calling(callee: Any, **settings: Any) -> Any:
    """A kernel with these settings that calls another one twice."""

    def caller(x: Any) -> Any:
        return callee(callee(x))

    return nki.jit(caller, **settings)


def test_a_configuration_changes_no_result() -> None:
    config = CompileConfig(non_ssa_legalization=True, address_rotation=nki.compiler.AddressRotation.DISABLE)
    for kernel in nki.jit(add_one, compile_config=config), nki.jit(compile_config=config)(add_one):
        assert np.array_equal(kernel(X), X + 1)
        assert kernel.settings.compile_config is config
        assert kernel[2].settings is kernel.with_schedule([]).settings is kernel.settings


def test_a_kernel_that_is_called_by_a_kernel_is_inlined() -> None:
    config = CompileConfig(dead_code_elim=True)
    same = CompileConfig(dead_code_elim=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for callee in nki.jit(add_one), nki.jit(add_one, compile_config=same):
            assert np.array_equal(calling(callee, compile_config=config)(X), X + 2)
        # A configuration of nothing but defaults is that of a kernel without one.
        assert np.array_equal(calling(nki.jit(add_one, compile_config=CompileConfig()))(X), X + 2)


def test_kernels_that_disagree_are_refused() -> None:
    callee = nki.jit(add_one, compile_config=CompileConfig(barrier_check=True, nki_alloc_fallback=False))
    message = refused(NkiValidationError, lambda: calling(callee)(X))
    assert without_line(message) == (
        "kernel add_one asks for another CompileConfig (barrier_check=True, not False; nki_alloc_fallback=False, not "
        "True) than caller, into which it is inlined: give both the same, or caller a "
        "specialization_config=SpecializationConfig(allow_nested_config_override=True)"
    )
    # What the callee itself allows does not matter.
    allowing = SpecializationConfig(allow_nested_config_override=True)
    callee = nki.jit(add_one, compile_config=CompileConfig(barrier_check=True), specialization_config=allowing)
    assert "asks for another CompileConfig" in refused(NkiValidationError, lambda: calling(callee)(X))


@pytest.mark.parametrize("cores", [1, 2])
def test_kernels_that_disagree_may_be_allowed_to(cores: int) -> None:
    allowing = SpecializationConfig(allow_nested_config_override=True)
    kernel = calling(nki.jit(add_one, compile_config=CompileConfig(barrier_check=True)), specialization_config=allowing)
    message = pytest.warns(UserWarning, match=r"\(barrier_check=True, not False\) .* that of caller holds")
    with message as caught, nkilib.simulator.using(races="ignore"):
        assert np.array_equal(kernel[cores](X), X + 2)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("argument", ["compile_config", "specialization_config"])
def test_configurations_of_another_class(argument: str) -> None:
    message = refused(TypeError, lambda: nki.jit(add_one, **{argument: {"barrier_check": True}}))
    assert message.startswith(f"nki.jit: {argument} must be an nki.compiler.")


def generation() -> Any:
    """Return the generation that runs the kernel, in a kernel."""
    return nisa.get_nc_version(), nisa.get_nc_sub_version()


def test_a_kernel_names_its_target() -> None:
    kernel = nki.jit(platform_target="trn3")(generation)
    assert kernel() == kernel[2]() == (nisa.nc_version.gen4, 1)
    assert nki.jit(generation, platform_target="trn3pre")() == (nisa.nc_version.gen4, 0)
    assert nki.jit(generation)() == (nisa.nc_version.gen3, 0)


def test_who_runs_the_kernel_may_name_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = nki.jit(generation, platform_target="trn3")
    with nkilib.simulator.using(target="trn1"):
        assert kernel()[0] is nisa.nc_version.gen2
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert kernel()[0] is nisa.nc_version.gen3


def test_a_called_kernel_runs_on_the_target_of_its_caller() -> None:
    callee = nki.jit(generation, platform_target="trn3")
    assert nki.jit(lambda: callee())()[0] is nisa.nc_version.gen3


def test_a_profile_is_of_the_target_of_the_kernel() -> None:
    assert nkilib.simulator.profile(nki.jit(add_one, platform_target="trn3"), X).generation == "trn3"


def test_a_target_that_does_not_exist() -> None:
    message = refused(ValueError, lambda: nki.jit(generation, platform_target="trn9"))
    assert message.startswith("nki.jit: platform_target must be one of trn1, ") and message.endswith("got 'trn9'")


@pytest.mark.parametrize("grid", [[2], (2,), 2], ids=str)
def test_a_grid_is_that_of_calls_without_brackets(grid: Any) -> None:
    kernel = nki.jit(grid=grid)(lambda: (nl.num_programs(), nl.program_ndim()))
    assert kernel() == (2, 1) and kernel[1]() == (1, 1)


def test_a_grid_that_cannot_be() -> None:
    for grid in ([2, 2], [], 3, "2", True):
        assert refused(NkiValidationError, lambda: nki.jit(grid=grid)) == (  # noqa: B023  # called at once
            f"nki.jit: grid must be the number of cores of a logical NeuronCore, 1 or 2, or [1] or [2], got {grid!r}"
        )


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


ROW = np.array([[1, 2, 4]], np.float32)
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
    assert kernel.with_schedule(schedule)(ROW).tolist() == EXPECTED
    assert kernel[1].with_schedule(schedule)(ROW).tolist() == EXPECTED
    assert kernel.with_schedule(schedule)[1](ROW).tolist() == EXPECTED


@pytest.mark.parametrize("kind", [nisa.dependency.runtime, nisa.dependency.schedule])
def test_the_kind_of_an_order_changes_no_result(kind: nisa.dependency) -> None:
    assert kernel.with_schedule([("plus1", "recip")], kind=kind)(ROW).tolist() == EXPECTED


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
    assert launch(ROW).tolist() == ((ROW + 1) * 4 + 2).tolist()


def test_the_hardware_does_not_wait_for_what_a_loop_keeps_to_itself() -> None:
    """The order in which a compiler issues them may be asked for."""
    with pytest.raises(nisa.NkiValidationError) as caught:
        loops.with_schedule([("store", ["load", "twice"])], kind=nisa.dependency.runtime)(ROW)
    assert str(caught.value) == (
        "loops: with_schedule: 'store' cannot wait for 'twice', which is in a dynamic loop that 'store' is not in; "
        "both must be in the same loop, or the producer around it"
    )
    loops.with_schedule([("store", "twice")], kind=nisa.dependency.schedule)(ROW)
    loops.with_schedule([("store", "twice")])(ROW)


def test_a_schedule_stays_with_the_grid_that_is_given_after_it() -> None:
    scheduled = kernel.with_schedule([("plus1", "no such name")])
    for launch in (scheduled, scheduled[1], kernel[1].with_schedule([("plus1", "no such name")])):
        with pytest.raises(nisa.NkiValidationError, match="with_schedule names 'no such name'"):
            launch(ROW)


def test_the_kernel_itself_has_no_schedule() -> None:
    kernel.with_schedule([("no such name", "recip")])
    assert kernel(ROW).tolist() == EXPECTED


def refused_schedule(schedule: Any) -> str:
    with pytest.raises(nisa.NkiValidationError) as caught:
        kernel.with_schedule(schedule)(ROW)
    return str(caught.value)


def test_names_that_no_instruction_has() -> None:
    known = "names in this launch: 'load', 'plus1', 'recip'"
    for schedule in ([("plus2", "recip")], [("recip", ["load", "plus2"])]):
        assert refused_schedule(schedule) == (
            f"kernel: with_schedule names 'plus2', but no instruction has that name=; {known}"
        )


def test_a_name_may_belong_to_one_core_only() -> None:
    def uneven(x: Any) -> Any:
        if nl.program_id(0) == 1:
            nisa.memset(nl.ndarray((1, 1), nl.float32), 0, name="second core only")
        return x

    assert nki.jit(uneven)[2].with_schedule([("second core only", [])])(ROW) is ROW


@pytest.mark.parametrize("schedule", ["ab", 3, None])
def test_a_schedule_is_a_list(schedule: Any) -> None:
    assert (
        refused_schedule(schedule) == f"with_schedule: the schedule must be a list of pairs of names, got {schedule!r}"
    )


@pytest.mark.parametrize("edge", ["ab", ("a",), ("a", "b", "c"), ("a", 3), (3, "a"), ("a", ["b", 3]), None])
def test_an_edge_is_a_pair_of_names(edge: Any) -> None:
    assert refused_schedule([edge]) == (
        f"with_schedule: an edge must be (name, name) or (name, [names]), the names= of instructions; got {edge!r}"
    )


def test_edges_do_not_run_in_a_circle() -> None:
    assert refused_schedule([("recip", "recip")]) == "with_schedule: the edges run in a circle: 'recip' after 'recip'"
    message = refused_schedule([("plus1", "recip"), ("recip", "load"), ("load", "plus1")])
    assert message.startswith("with_schedule: the edges run in a circle: ")
    circle = message.partition("circle: ")[2].split(" after ")
    assert circle[0] == circle[-1] and set(circle) == {"'load'", "'plus1'", "'recip'"}
    after = {"'plus1'": "'recip'", "'recip'": "'load'", "'load'": "'plus1'"}
    assert all(after[name] == next_ for name, next_ in itertools.pairwise(circle))


@nki.jit
def doubled(x_hbm: Any) -> Any:
    """Twice an array of 4 x 8, which both cores make."""
    tile = nl.ndarray((4, 8), nl.float32)
    nisa.dma_copy(tile, x_hbm)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    result_hbm = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(result_hbm, tile)
    return result_hbm


ONES = np.ones((4, 8), np.float32)


@pytest.fixture
def without_replay() -> Iterator[None]:
    with nkilib.simulator.using(replay=False):
        yield


@pytest.mark.usefixtures("without_replay")
def test_the_environment_and_the_options_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def reading(*args: Any) -> Any:
            read.append(name)
            return function(*args)

        return reading

    monkeypatch.setattr(lnc, "of_variable", counted("variable", lnc.of_variable))
    monkeypatch.setattr(lnc, "of_flags", counted("flags", lnc.of_flags))
    monkeypatch.setattr(place, "current_options", counted("options", options.current_options))
    np.testing.assert_array_equal(doubled[2](ONES), 2 * ONES)
    assert sorted(read) == ["flags", "options", "variable"]


@pytest.mark.usefixtures("without_replay")
def test_flags_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lnc.FLAGS, "--verbose=35 --lnc=2 --a-flag-of-this-test")
    before = lnc._of_flags.cache_info()
    for _ in range(3):
        assert lnc.of_flags() == lnc.Choice(2, "--lnc=2 in NEURON_CC_FLAGS")
    after = lnc._of_flags.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)
    assert after.maxsize is not None


@pytest.mark.usefixtures("without_replay")
def test_a_wrong_flag_is_refused_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lnc.FLAGS, "--lnc=7")
    for _ in range(2):
        with pytest.raises(ValueError, match="--lnc in NEURON_CC_FLAGS must be 1 or 2"):
            lnc.of_flags()


@pytest.mark.usefixtures("without_replay")
def test_a_change_of_the_environment_is_seen_by_the_next_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled[2](ONES)
    monkeypatch.setenv(lnc.VARIABLE, "1")
    with pytest.raises(NkiValidationError, match="means 2 cores, and NEURON_LOGICAL_NC_CONFIG=1 means 1 core"):
        doubled[2](ONES)
    monkeypatch.setenv(lnc.VARIABLE, "2")
    assert LaunchEnvironment.here().cores_of(doubled) == 2


@pytest.mark.usefixtures("without_replay")
def test_a_launch_makes_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled[2](ONES)
    made: list[Kernel] = []
    monkeypatch.setattr(Kernel, "__init__", lambda self, *args, **kwargs: made.append(self))
    doubled[2](ONES)
    lnc.library_launch("doubled", doubled)(ONES)
    assert made == []


@pytest.mark.usefixtures("without_replay")
def test_a_launch_leaves_nothing_to_the_garbage_collector() -> None:
    with nkilib.simulator.using(replay=False):  # a launch that is recorded leaves its plan's cycles
        doubled[2](ONES)
        while gc.collect():  # garbage of other tests may take several collections
            pass
        gc.disable()
        try:
            doubled[2](ONES)
            assert gc.collect() == 0
        finally:
            gc.enable()


@pytest.mark.usefixtures("without_replay")
def test_arguments_that_do_not_fit_are_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^doubled: missing a required argument: 'x_hbm'$"):
            doubled[2]()
