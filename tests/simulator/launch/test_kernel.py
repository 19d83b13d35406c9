# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.launch.kernel``: how kernels are made and launched, on one core and on two."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ArgumentTypeError, NkiValidationError
from nkilib.simulator.machine import synchronisation as waits
from nkilib.simulator.machine.core import current_core_or_none
from tests.hangs import HANG_SECONDS
from tests.simulator.frame import in_time, refused, run, without_line
from tests.simulator.kernels import load

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def add(x: Any, amount: float = 1.0) -> Any:
    """A kernel: x + amount."""
    tile = load(x)
    nisa.tensor_scalar(tile, tile, nl.add, amount)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, tile)
    return result


def where(x: Any) -> tuple[int, int, int]:
    """A kernel that returns what it sees of the launch grid; core 0's is returned."""
    return nl.program_id(0), nl.num_programs(0), nl.program_ndim()


def each_core(x: Any) -> Any:
    """A kernel: core c of n cores writes 10 * n + c into rows c, c + n, ..."""
    core, cores = nl.program_id(), nl.num_programs()
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for row in range(core, x.shape[0], cores):
        nisa.dma_copy(result[row], nl.full((1, x.shape[1]), 10 * cores + core, x.dtype))
    return result


# -- forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        nki.jit(add),
        nki.jit()(add),
        nki.jit(fn=add),
        nki.jit(nki.jit(add)),
        nki.jit(add)[1],
        nki.jit(add)[(1,)],
        nki.jit(add)[2][1],
        nki.simulate(add),
        nki.simulate(nki.jit(add)),
        nki.simulate(nki.jit(add)[1]),
        nki.simulate(add)[1],
    ],
)
def test_every_form_runs_the_kernel(kernel: Any) -> None:
    np.testing.assert_array_equal(kernel(X), X + 1)
    np.testing.assert_array_equal(kernel(X, 2.5), X + 2.5)
    np.testing.assert_array_equal(kernel(amount=-1.0, x=X), X - 1)


def test_the_decorator_keeps_name_and_documentation() -> None:
    kernel = nki.jit(add)
    assert (kernel.__name__, kernel.__doc__, kernel.func) == ("add", "A kernel: x + amount.", add)
    assert (repr(kernel), repr(kernel[2])) == ("<simulated NKI kernel add>", "<simulated NKI kernel add[2]>")


def test_a_partial_function_is_a_kernel() -> None:
    np.testing.assert_array_equal(nki.simulate(functools.partial(add, amount=3.0))(X), X + 3)


@pytest.mark.parametrize("grid", [2, (2,), np.int64(2)])
def test_a_launch_on_two_cores(grid: Any) -> None:
    assert nki.jit(where)[grid](X) == (0, 2, 1)
    np.testing.assert_array_equal(nki.jit(each_core)[grid](X), [[20] * 3, [21] * 3])
    np.testing.assert_array_equal(nki.simulate(nki.jit(each_core)[grid])(X), [[20] * 3, [21] * 3])


def test_a_launch_on_one_core_has_a_grid_only_if_asked_for() -> None:
    assert nki.jit(where)(X) == (0, 1, 0)
    assert nki.jit(where)[1](X) == (0, 1, 1)


@pytest.mark.parametrize(("size", "seen"), [("", (0, 1, 0)), ("1", (0, 1, 0)), ("2", (0, 2, 1))])
def test_a_launch_without_brackets_runs_on_the_cores_of_the_environment(
    size: str, seen: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", size)
    cores = seen[1]
    assert nki.jit(where)(X) == seen
    rows = [10, 10] if cores == 1 else [20, 21]
    np.testing.assert_array_equal(nki.simulate(each_core)(X), np.outer(rows, np.ones(3)))
    np.testing.assert_array_equal(nki.jit(each_core)[cores](X), nki.jit(each_core)(X))


def test_a_grid_that_is_not_the_environments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert refused(NkiValidationError, lambda: nki.jit(each_core)[1](X)) == (
        "each_core[1]: the grid [1] means 1 core, and NEURON_LOGICAL_NC_CONFIG=2 means 2 cores: kernel and compiler "
        "must work with the same number (error NCC_EVRF066 otherwise); set NEURON_LOGICAL_NC_CONFIG=1, or leave the "
        "brackets out"
    )
    with nkilib.simulator.using(target="trn1"):
        assert refused(NkiValidationError, lambda: nki.jit(each_core)(X)) == (
            "each_core with NEURON_LOGICAL_NC_CONFIG=2: trn1 has no logical NeuronCores of two; set "
            "NEURON_LOGICAL_NC_CONFIG=1 and launch on one core, or set NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3"
        )
    shape = nkilib.simulator.spec(X.shape, nl.float32)
    assert nki.jit(each_core)[1](shape) == shape, "a launch on shapes alone is a question about any machine"
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "3")
    assert refused(ValueError, lambda: nki.jit(each_core)(X)).startswith("NEURON_LOGICAL_NC_CONFIG must be 1 or 2, ")


@pytest.mark.parametrize("grid", [0, 3, -1, 2.0, True, "2", None, (2, 1), (), [2]], ids=repr)
def test_other_grids_are_refused(grid: Any) -> None:
    expected = f"add[n]: n is the number of cores of a logical NeuronCore, 1 or 2, got {grid!r}"
    assert refused(NkiValidationError, lambda: nki.jit(add)[grid]) == expected


def test_trn1_has_no_logical_core_of_two() -> None:
    kernel = nki.jit(each_core)
    with nkilib.simulator.using(target="trn1"):
        message = refused(NkiValidationError, lambda: kernel[2](X))
        np.testing.assert_array_equal(kernel[1](X), np.full((2, 3), 10))
    assert message == (
        "each_core[2]: trn1 has no logical NeuronCores of two; launch on one core (where a library launches, set "
        "NEURON_LOGICAL_NC_CONFIG=1), or set NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3"
    )
    for target in ("trn2", "trn3"):
        with nkilib.simulator.using(target=target):
            np.testing.assert_array_equal(kernel[2](X), [[20] * 3, [21] * 3])


def test_what_is_no_function_is_refused() -> None:
    assert refused(TypeError, lambda: nki.jit(3)) == "nki.jit decorates a function, got 3"
    assert refused(TypeError, lambda: nki.simulate("k")) == "nki.jit decorates a function, got 'k'"


def test_keywords_of_older_releases() -> None:
    """``mode`` is ignored with a warning, as the migration guide says of NKI."""
    with pytest.warns(DeprecationWarning, match=r"nki.jit\(mode=...\) is deprecated and ignored"):
        kernel = nki.jit(add, mode="jax")
    np.testing.assert_array_equal(kernel(X), nki.jit(add)(X))
    with pytest.warns(DeprecationWarning):
        assert nki.jit(mode="trace")(add)(X) is not None
    assert refused(TypeError, lambda: nki.jit(fast=True)) == "nki.jit() has no keyword 'fast'"
    assert refused(TypeError, lambda: nki.jit(platfrom_target="trn3")) == (
        "nki.jit() has no keyword 'platfrom_target'; did you mean 'platform_target'?"
    )


def test_keywords_for_the_compiler_change_nothing() -> None:
    """No documentation names them; published kernels pass them. There is no compiler here that they could reach."""
    kernel = nki.jit(debug_kernel=True, show_compiler_tb=True, experimental_flags="skip-some-check")(add)
    np.testing.assert_array_equal(kernel(X), nki.jit(add)(X))


def test_wrong_arguments_are_a_type_error_that_names_the_kernel() -> None:
    assert refused(ArgumentTypeError, lambda: nki.jit(add)()) == "add: missing a required argument: 'x'"
    assert (
        refused(ArgumentTypeError, lambda: nki.jit(add)(X, wrong=1))
        == "add: got an unexpected keyword argument 'wrong'"
    )
    assert refused(ArgumentTypeError, lambda: nki.jit(add)[2](X, 1.0, 2.0)) == "add: too many positional arguments"
    partial = nki.simulate(functools.partial(add, amount=3.0))
    assert refused(ArgumentTypeError, lambda: partial()) == "partial: missing a required argument: 'x'"


def test_arguments_by_star() -> None:
    def kernel(*arrays: Any, **more: Any) -> Any:
        assert sorted(more) == ["amount", "last"]
        return [add(array, more["amount"]) for array in (*arrays, more["last"])]

    results = run_with_keywords(kernel, X, X[:1], last=X[1:], amount=2.0)
    for result, array in zip(results, (X, X[:1], X[1:]), strict=True):
        np.testing.assert_array_equal(result, array + 2)


def run_with_keywords(body: Callable[..., Any], *arrays: Any, **keywords: Any) -> Any:
    return nki.jit(body)(*arrays, **keywords)


# -- kernels that call kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [None, 1, 2])
def test_a_kernel_called_in_a_kernel_is_a_plain_call(cores: int | None) -> None:
    inner = nki.jit(each_core)

    def kernel(x: Any) -> Any:
        values = inner(x)
        assert not isinstance(values, np.ndarray) and values.buffer is nl.shared_hbm
        if cores is not None:
            values = inner[cores](x)
        return values

    expected = [[20] * 3, [21] * 3] if cores == 2 else [[10] * 3] * 2
    np.testing.assert_array_equal(run(kernel, X, cores=cores), expected)


def test_a_kernel_called_in_a_kernel_runs_on_the_callers_cores() -> None:
    inner = nki.jit(add)
    message = refused(NkiValidationError, lambda: run(lambda x: inner[2](x), X))
    assert without_line(message) == (
        "add[2] is called inside a kernel on 1 core(s): a kernel called by a kernel is part of it and runs on the "
        "caller's cores; leave the brackets out"
    )
    np.testing.assert_array_equal(run(lambda x: inner[1](x), X), X + 1)


def test_a_wrong_call_of_a_kernel_in_a_kernel_names_it_and_what_was_likely_meant() -> None:
    inner, expected = nki.jit(add), "add, called inside a kernel: "
    missing = refused(ArgumentTypeError, lambda: run(lambda x: inner(), X))
    assert without_line(missing) == f"{expected}missing a required argument: 'x'"
    unknown = refused(ArgumentTypeError, lambda: run(lambda x: inner(x, amuont=2.0), X))
    assert without_line(unknown) == f"{expected}got an unexpected keyword argument 'amuont'; did you mean 'amount'?"
    assert refused(ArgumentTypeError, lambda: inner(X, amounts=2.0)) == (
        "add: got an unexpected keyword argument 'amounts'; did you mean 'amount'?"
    )


# -- errors ----------------------------------------------------------------------------------------------------


class KernelError(Exception):
    """An error that only these tests raise."""


def barrier() -> Any:
    """Wait for the other core, in a kernel."""
    nisa.core_barrier(nl.ndarray((1,), nl.int32, nl.shared_hbm), (0, 1))


@pytest.mark.parametrize("cores", [None, 1])
def test_an_exception_surfaces_as_it_is(cores: int | None) -> None:
    error = KernelError("stop")

    def kernel() -> None:
        raise error

    with pytest.raises(KernelError) as caught:
        run(kernel, cores=cores)
    assert caught.value is error
    assert current_core_or_none() is None


@pytest.mark.parametrize("kind", [KernelError, AssertionError, NkiValidationError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("before", [0, 1])
def test_an_exception_on_one_core_ends_the_other_where_it_waits(kind: Any, failing: int, before: int) -> None:
    error = kind("stop")

    def kernel() -> None:
        for _ in range(before):
            barrier()
        if nl.program_id() == failing:
            raise error
        barrier()

    assert in_time(lambda: run(kernel, cores=2)) is error


@pytest.mark.parametrize("failing", [0, 1])
def test_an_exception_on_one_core_ends_the_other_at_one_of_its_next_instructions(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "ALLOWANCE", 100)

    def kernel() -> None:
        tile = nl.zeros((1, 1), nl.float32)
        barrier()
        if nl.program_id() == failing:
            raise KernelError
        while True:
            try:
                nisa.memset(tile, 1)
            except Exception:
                raise AssertionError("a kernel that catches Exception must not see the end of the core") from None

    assert type(in_time(lambda: run(kernel, cores=2))) is KernelError


def test_an_interrupt_while_waiting_for_the_other_core_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    join = threading.Thread.join
    interrupted: list[threading.Thread] = []

    def join_with_an_interrupt(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "core 1" and not interrupted:
            interrupted.append(thread)
            raise KeyboardInterrupt
        join(thread, timeout)

    def kernel() -> None:
        tile = nl.zeros((1, 1), nl.float32)
        while nl.program_id() == 1:
            nisa.memset(tile, 1)

    monkeypatch.setattr(threading.Thread, "join", join_with_an_interrupt)
    assert type(in_time(lambda: run(kernel, cores=2))) is KeyboardInterrupt
    assert not interrupted[0].is_alive()


def test_an_instructions_error_names_its_core() -> None:
    def kernel() -> None:
        barrier()
        if nl.program_id() == 1:
            nisa.memset(nl.ndarray((1, 1), nl.int8), 300, name="fill")
        barrier()

    error = in_time(lambda: run(kernel, cores=2))
    place, _, message = str(error).partition(": ")
    assert place.startswith(f"{__file__}:")
    assert message == "nisa.memset (name='fill') on core 1: value must be in [-128, 127] for int8, got 300"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KernelError("rows"), "rows ({})"),
        (KernelError(), "{}"),
        (AttributeError("x"), "x ({})"),
        (KeyError("k"), "'k'"),
        (KernelError("one", "two"), "('one', 'two')"),
        (ImportError("package"), "package"),
    ],
    ids=repr,
)
def test_an_exception_of_python_on_core_1_names_it_and_the_line(error: Exception, message: str) -> None:
    """The message names them where it is one string, else a note does."""

    def kernel() -> None:
        if nl.program_id() == 1:
            raise error
        barrier()

    raised = in_time(lambda: run(kernel, cores=2))
    line = inspect.getsourcelines(kernel)[1] + 2
    where = f"on core 1, {__file__}:{line}"
    assert raised is error and str(error) == message.format(where)
    if "{}" not in message and sys.version_info >= (3, 11):
        assert error.__notes__ == [where]


def test_on_core_0_which_is_the_callers_thread_an_exception_stays_as_it_is() -> None:
    def kernel() -> None:
        if nl.program_id() == 0:
            raise KernelError("rows")
        barrier()

    assert str(in_time(lambda: run(kernel, cores=2))) == "rows"


def test_without_a_second_core_an_error_names_none() -> None:
    def kernel() -> None:
        nisa.memset(nl.ndarray((1, 1), nl.int8), 300)

    message = refused(NkiValidationError, lambda: run(kernel)).partition(": ")[2]
    assert message == "nisa.memset: value must be in [-128, 127] for int8, got 300"


def test_after_an_error_the_next_launch_runs() -> None:
    def kernel(x: Any, fails: bool) -> Any:
        if fails and nl.program_id() == 1:
            raise KernelError
        return each_core(x)

    for _ in range(3):
        assert type(in_time(lambda: run(kernel, X, True, cores=2))) is KernelError
        np.testing.assert_array_equal(run(kernel, X, False, cores=2), [[20] * 3, [21] * 3])


def test_nothing_works_outside_a_kernel() -> None:
    with_core = "works inside a kernel only: decorate the function with @nki.jit and call it"
    assert refused(NkiValidationError, lambda: nl.program_id()) == f"nl.program_id {with_core}"
    message = refused(NkiValidationError, lambda: nisa.memset(None, 0))  # type: ignore[arg-type]
    assert message == f"nisa.memset {with_core}"


# -- Python in kernels -----------------------------------------------------------------------------------------


def test_core_0_runs_in_the_calling_thread_where_breakpoint_works(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[int, threading.Thread] = {}
    stops: list[tuple[threading.Thread, int]] = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append((threading.current_thread(), nl.program_id())))

    def kernel(x: Any) -> None:
        threads[nl.program_id()] = threading.current_thread()
        barrier()
        if nl.program_id() == 0:
            breakpoint()

    run(kernel, X, cores=2)
    assert threads[0] is threading.current_thread() is not threads[1]
    assert stops == [(threads[0], 0)]
    assert threads[1].name == "core 1"


def test_both_cores_run_at_the_same_time() -> None:
    """Each waits until the other one is there too."""
    met = threading.Barrier(2)
    arrivals: list[int] = []
    run(lambda: arrivals.append(met.wait(HANG_SECONDS)), cores=2)
    assert sorted(arrivals) == [0, 1]


def test_print_and_f_strings(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(a_input: Any) -> None:
        print(f"adding tensors of type {a_input.dtype} and shape {a_input.shape} in {a_input.buffer}")
        print(repr(nl.ndarray((2, 3), nl.bfloat16, name="tile")), nl.add, nisa.engine.vector.name)
        print(nisa.memset(nl.ndarray((2, 3), nl.bfloat16), 0, name="fill"))

    run(kernel, X)
    assert capsys.readouterr().out.splitlines() == [
        "adding tensors of type float32 and shape (2, 3) in private_hbm",
        "tensor 'tile' [2, 3] bfloat16 in sbuf nl.add vector",
        "<nisa.memset fill>",
    ]


class Shift(Enum):
    up = 1
    down = -1


@dataclass(frozen=True)
class Scaling(nl.NKIObject):
    factor: float
    kind: Any = nl.float32


@dataclass
class Plan(nl.NKIObject):
    weights: Any
    scaling: Scaling
    shift: Shift = Shift.up


def apply_plan(x: Any, plan: Plan, extra: Shift) -> Any:
    """A kernel: (x * factor + weights) * shift, plus extra."""
    values, weights = load(x), load(plan.weights)
    assert plan.scaling.kind == x.dtype
    nisa.tensor_scalar(values, values, nl.multiply, plan.scaling.factor)
    nisa.tensor_tensor(values, values, weights, nl.add)
    if plan.shift == Shift.down:
        nisa.tensor_scalar(values, values, nl.multiply, -1.0)
    nisa.tensor_scalar(values, values, nl.add, float(extra.value))
    result = nl.ndarray(x.shape, plan.scaling.kind, nl.shared_hbm)
    nisa.dma_copy(result, values)
    return result


@pytest.mark.parametrize("shift", Shift)
def test_dataclasses_and_enumerations_as_arguments(shift: Shift) -> None:
    weights = np.full((2, 3), 100, np.float32)
    plan = Plan(weights, Scaling(2.0), shift)
    result = nki.jit(apply_plan)(X, plan, extra=Shift.down)
    np.testing.assert_array_equal(result, (X * 2 + 100) * shift.value - 1)
    assert plan.weights is weights, "the caller's object stays as it was"


def test_functions_and_types_as_arguments() -> None:
    def kernel(x: Any, function: Any, kinds: dict[str, Any]) -> Any:
        return function(x, kinds["amount"]) if kinds["dtype"] is nl.float32 else None

    np.testing.assert_array_equal(run(kernel, X, add, {"dtype": nl.float32, "amount": 4.0}), X + 4)


def test_results_other_than_tensors_pass_through() -> None:
    assert run(lambda: None) is None
    assert run(lambda: (1, "a", [2.5, None], {"k": nl.float32})) == (1, "a", [2.5, None], {"k": "float32"})
