# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The one way of an instruction: registry, binding, the engine it runs on, errors, and the handle that it returns."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ArgumentTypeError
from nkilib.simulator.machine.issue import REGISTRY
from nkilib.simulator.terms.enums import nc_version

from ..kernels import execute, load, refusal, tile

UNINITIALIZED = nkilib.simulator.UninitializedReadError
ENGINE = nisa.engine

# Name: engines in the documentation's order of preference, and the first generation.
DOCUMENTED = {
    "dma_copy": ("sync scalar", nc_version.gen2),
    "memset": ("vector gpsimd", nc_version.gen2),
    "tensor_copy": ("vector scalar gpsimd", nc_version.gen2),
    "tensor_tensor": ("vector gpsimd", nc_version.gen2),
    "tensor_scalar": ("vector scalar gpsimd", nc_version.gen2),
    "scalar_tensor_tensor": ("vector", nc_version.gen2),
    "tensor_reduce": ("vector", nc_version.gen2),
    "reciprocal": ("vector", nc_version.gen2),
    "tensor_scalar_reduce": ("vector", nc_version.gen2),
    "select_reduce": ("vector", nc_version.gen2),
    "exponential": ("vector", nc_version.gen4),
    "activation": ("scalar gpsimd", nc_version.gen2),
    "activation_reduce": ("scalar", nc_version.gen2),
    "activate2": ("scalar gpsimd", nc_version.gen4),
    "dma_transpose": ("dma", nc_version.gen2),
    "iota": ("gpsimd", nc_version.gen2),
    "tensor_copy_predicated": ("vector", nc_version.gen2),
    "tensor_partition_reduce": ("gpsimd", nc_version.gen2),
    "tensor_scalar_cumulative": ("vector", nc_version.gen2),
    "nc_matmul": ("tensor", nc_version.gen2),
    "nc_transpose": ("tensor vector", nc_version.gen2),
    "nc_matmul_mx": ("tensor", nc_version.gen4),
    "quantize_mx": ("vector", nc_version.gen4),
    "core_barrier": ("gpsimd tensor vector scalar sync", nc_version.gen3),
}


# -- the registry ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTED)
def test_engines_and_generation(name: str) -> None:
    engines, since = DOCUMENTED[name]
    assert [engine.name for engine in REGISTRY[name].engines] == engines.split(" ")
    assert REGISTRY[name].since is since


def test_every_instruction_of_the_module_is_registered_and_none_besides() -> None:
    engines = "nkilib.simulator.engines."
    public = {name for name in nisa.__all__ if getattr(getattr(nisa, name), "__module__", "").startswith(engines)}
    assert public == set(REGISTRY)
    assert set(DOCUMENTED) <= public


@pytest.mark.parametrize("name", DOCUMENTED)
def test_operands_are_parameters_and_vectors_are_like_an_operand_checked_before(name: str) -> None:
    definition = REGISTRY[name]
    seen: list[str] = []
    for operand in definition.operands:
        assert operand.name in definition.names
        assert not operand.is_vector or operand.like in seen
        seen.append(operand.name)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_public_function_shows_its_name_text_and_signature(name: str) -> None:
    function = getattr(nisa, name)
    assert function.__name__ == name
    assert function.__doc__
    parameters = inspect.signature(function).parameters
    assert list(parameters)[-1] == "name" and parameters["name"].default is None
    assert "call" not in parameters


def test_outside_a_kernel_an_instruction_says_so() -> None:
    with pytest.raises(nisa.NkiValidationError) as caught:
        nisa.memset(None, 0)
    message = "nisa.memset works inside a kernel only: decorate the function with @nki.jit and call it"
    assert str(caught.value) == message


# -- binding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.subtract, 1.0, True, nl.multiply, 3.0, False, ENGINE.vector),
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.subtract, 1.0, True, nl.multiply, 3.0),
        lambda dst, data: nisa.tensor_scalar(
            operand1=3.0, op1=nl.multiply, reverse0=True, operand0=1.0, op0=nl.subtract, data=data, dst=dst
        ),
        lambda dst, data: nisa.tensor_scalar(
            dst, data, nl.subtract, 1.0, op1=nl.multiply, operand1=3.0, name="three", reverse0=True
        ),
        lambda dst, data: nisa.tensor_scalar(
            dst, data, nl.subtract, 1.0, True, nl.multiply, 3.0, False, ENGINE.vector, "three"
        ),
    ],
    ids=["positional", "defaults", "keywords", "mixed", "name by position"],
)
def test_parameters_bind_as_python_binds_them(call: Any) -> None:
    """(1 - x) * 3."""

    def kernel(inputs: Any) -> Any:
        data, dst, result = load(inputs), nl.ndarray((1, 3), nl.float32), nl.ndarray((1, 3), nl.float32, nl.shared_hbm)
        call(dst, data)
        nisa.dma_copy(result, dst)
        return result

    assert nki.jit(kernel)(np.array([[0, 1, 3]], np.float32)).tolist() == [[3, 0, -6]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nisa.reciprocal(tile(2, 2)), "nisa.reciprocal: missing a required argument: 'data'"),
        (
            lambda: nisa.reciprocal(data=tile(2, 2)),
            "nisa.reciprocal: missing a required argument: 'dst'; an instruction writes into dst and returns no tile: "
            "make one with nl.ndarray",
        ),
        (lambda: nisa.reciprocal(1, 2, 3, 4), "nisa.reciprocal: too many positional arguments"),
        (
            lambda: nisa.reciprocal(tile(2, 2), tile(2, 2), engine=ENGINE.vector),
            "nisa.reciprocal: got an unexpected keyword argument 'engine'",
        ),
        (
            lambda: nisa.reciprocal(tile(2, 2), src=tile(2, 2)),
            "nisa.reciprocal: got an unexpected keyword argument 'src'; did you mean 'data'?",
        ),
        (
            lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), op=nl.add, operand=1.0),
            "nisa.tensor_scalar: got an unexpected keyword argument 'op'; did you mean 'op0'? And 'operand'; did you "
            "mean 'operand0'?",
        ),
        (
            lambda: nisa.activation(op=nl.exp, data=tile(2, 2), bais=tile(2, 1)),
            "nisa.activation: got an unexpected keyword argument 'bais'; did you mean 'bias'?",
        ),
        (
            lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2), dtype=nl.bfloat16),
            "nisa.tensor_copy: got an unexpected keyword argument 'dtype'; the result has the type of dst",
        ),
        (
            lambda: nisa.reciprocal(tile(2, 2), tile(2, 2), dst=tile(2, 2)),
            "nisa.reciprocal: multiple values for argument 'dst'",
        ),
    ],
    ids=[
        "missing",
        "missing first",
        "too many",
        "unknown",
        "missing and unknown",
        "older",
        "misspelt",
        "typed",
        "twice",
    ],
)
def test_a_wrong_call_is_an_error_with_the_line_and_the_instruction(call: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        execute(call)
    place, _, text = str(caught.value).partition(": ")
    assert text == message and place.startswith(f"{__file__}:")


def test_a_refused_call_leaves_no_trace_in_the_record() -> None:
    def kernel() -> None:
        tile(2, 2)
        nisa.reciprocal(tile(2, 2), tile(3, 2))

    with nkilib.simulator.recording() as record, pytest.raises(nisa.NkiValidationError):
        execute(kernel)
    assert record.instruction_counts == {"memset": 3}


# -- errors ----------------------------------------------------------------------------------------------------------

SIZES = (
    "operands 'dst' and 'data' must have the same number of partitions, got tensor [2, 2] float32 in sbuf and tensor "
    "[3, 2] float32 in sbuf"
)


def test_an_error_names_file_and_line_of_the_instruction_in_the_kernel() -> None:
    def kernel() -> None:
        dst, data = tile(2, 2), tile(3, 2)
        nisa.reciprocal(dst, data)

    with pytest.raises(nisa.NkiValidationError) as caught:
        execute(kernel)
    line = inspect.getsourcelines(kernel)[1] + 2
    assert str(caught.value) == f"{__file__}:{line}: nisa.reciprocal: {SIZES}"


def test_an_error_names_the_line_inside_a_function_that_the_kernel_calls() -> None:
    def invert(dst: Any, data: Any) -> None:
        nisa.reciprocal(dst, data)

    with pytest.raises(nisa.NkiValidationError) as caught:
        execute(lambda: invert(tile(2, 2), tile(3, 2)))
    line = inspect.getsourcelines(invert)[1] + 1
    assert str(caught.value) == f"{__file__}:{line}: nisa.reciprocal: {SIZES}"


def test_an_error_names_the_name_of_the_instruction() -> None:
    message = refusal(lambda: nisa.reciprocal(tile(2, 2), tile(3, 2), name="invert scale"))
    assert message == f"nisa.reciprocal (name='invert scale'): {SIZES}"


@pytest.mark.parametrize("core", [0, 1])
def test_an_error_names_the_core_where_there_are_two(core: int) -> None:
    def kernel() -> None:
        if nl.program_id(0) == core:
            nisa.reciprocal(tile(2, 2), tile(3, 2))

    assert refusal(kernel, cores=2) == f"nisa.reciprocal on core {core}: {SIZES}"


def test_an_error_names_name_and_core_together() -> None:
    def kernel() -> None:
        if nl.program_id(0) == 1:
            nisa.reciprocal(tile(2, 2), tile(3, 2), name="late")

    assert refusal(kernel, cores=2) == f"nisa.reciprocal (name='late') on core 1: {SIZES}"


def test_an_error_names_the_tensors_that_have_names() -> None:
    def kernel() -> None:
        weights = nl.ndarray((2, 2), nl.float32, name="weights")
        nisa.reciprocal(weights, tile(3, 2))

    assert refusal(kernel) == "nisa.reciprocal: " + SIZES.replace("tensor [2", "tensor 'weights' [2")


def test_a_generation_that_lacks_the_instruction() -> None:
    def kernel() -> None:
        nisa.exponential(tile(2, 2), tile(2, 2))

    for target, generation in (("trn1", "gen2"), ("trn2", "gen3")):
        assert refusal(kernel, target) == (
            f"nisa.exponential: needs gen4 or newer; the target is {target} ({generation}), set "
            "NEURON_PLATFORM_TARGET_OVERRIDE to change it"
        )
    execute(kernel, "trn3")


def test_an_engine_of_another_kind() -> None:
    message = "nisa.memset: engine must be a member of nki.isa.engine, got 'vector'"
    assert refusal(lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), 0, engine="vector")) == message
    execute(lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), 0, engine=ENGINE.vector))


@pytest.mark.parametrize(
    ("engine", "chosen"),
    [(nisa.vector_engine, "vector"), (nisa.gpsimd_engine, "gpsimd"), (nisa.unknown_engine, "vector")],
)
def test_deprecated_names_of_the_engines(engine: Any, chosen: str) -> None:
    """The last one leaves the choice open: the first engine that the documentation of the instruction names."""
    with nkilib.simulator.recording() as record:
        execute(lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), 0, engine=engine))
    assert record.instructions_per_engine == {chosen: 1}


def test_what_a_refused_instruction_would_have_written_stays_unwritten() -> None:
    """A kernel that catches the error cannot read the result."""

    def kernel() -> None:
        made = nl.ndarray((2, 2), nl.float32)
        try:
            nisa.tensor_scalar(made, tile(2, 2), nl.add, 1, operand1=2)
        except nisa.NkiValidationError:
            nisa.reciprocal(tile(2, 2), made)

    assert refusal(kernel, error=UNINITIALIZED) == (
        "nisa.reciprocal: operand 'data': 4 of the 4 elements of tensor [2, 2] float32 in sbuf were never written"
    )


# -- the handle ------------------------------------------------------------------------------------------------------


def test_every_instruction_returns_a_handle_with_its_name() -> None:
    def kernel() -> list[str]:
        made = nl.ndarray((2, 2), nl.float32)
        first = nisa.memset(made, 1)
        second = nisa.memset(made, 2, name="twos")
        assert isinstance(first, nisa.NkiInstruction)
        return [repr(first), repr(second)]

    assert execute(kernel) == ["<nisa.memset>", "<nisa.memset twos>"]


RUNTIME, SCHEDULE = nisa.dependency.runtime, nisa.dependency.schedule


def test_depends_on_takes_several_producers_and_chains() -> None:
    def kernel() -> None:
        made = nl.ndarray((2, 2), nl.float32)
        first, second, third = (nisa.memset(made, value) for value in range(3))
        assert second.depends_on(kind=RUNTIME) is second and second.producers == ()
        assert third.depends_on(second, first, kind=RUNTIME) is third
        assert third.producers == (second, first)
        fourth = nisa.memset(made, 3).depends_on(third, kind=RUNTIME).depends_on(first, kind=SCHEDULE)
        assert fourth.producers == (third, first)

    execute(kernel)


@pytest.mark.parametrize("producer", [None, "memset", 3])
def test_depends_on_takes_instructions_only(producer: Any) -> None:
    message = refusal(lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), 0).depends_on(producer, kind=RUNTIME))
    assert message == f"NkiInstruction.depends_on: a producer must be an instruction, got {producer!r}"


@pytest.mark.parametrize("kind", [RUNTIME, SCHEDULE])
def test_an_instruction_cannot_wait_for_a_later_one(kind: nisa.dependency) -> None:
    """The simulator has run the two in program order: the kernel would do something else on a device."""

    def kernel(is_right: bool) -> Any:
        def body() -> None:
            made = nl.ndarray((2, 2), nl.float32)
            first = nisa.memset(made, 0, name="first")
            second = nisa.memset(made, 1, name="second")
            consumer, producer = (second, first) if is_right else (first, second)
            consumer.depends_on(producer, kind=kind)

        return body

    assert refusal(kernel(False)) == (
        "NkiInstruction.depends_on: <nisa.memset first> cannot wait for <nisa.memset second>, which is not issued "
        "before it: the simulator runs instructions in program order"
    )
    execute(kernel(True))


def test_an_instruction_cannot_wait_for_itself() -> None:
    def kernel() -> None:
        alone = nisa.memset(nl.ndarray((2, 2), nl.float32), 0)
        alone.depends_on(alone, kind=RUNTIME)

    assert refusal(kernel) == (
        "NkiInstruction.depends_on: <nisa.memset> cannot wait for <nisa.memset>, which is not issued before it: the "
        "simulator runs instructions in program order"
    )


def test_a_refused_producer_is_not_remembered() -> None:
    def kernel() -> tuple[Any, ...]:
        made = nl.ndarray((2, 2), nl.float32)
        first, second = nisa.memset(made, 0), nisa.memset(made, 1)
        with pytest.raises(nisa.NkiValidationError):
            second.depends_on(first, None, kind=RUNTIME)
        return second.producers

    assert execute(kernel) == ()


def test_depends_on_without_a_kind_is_deprecated_and_means_what_it_did() -> None:
    """The warning is at the line of the kernel: Python shows it once for each."""

    def kernel() -> bool:
        made = nl.ndarray((2, 2), nl.float32)
        first, second = nisa.memset(made, 0), nisa.memset(made, 1)
        second.depends_on(first)
        return second.producers == (first,)

    with pytest.warns(DeprecationWarning, match="pass kind=nki.isa.dependency.runtime") as caught:
        assert execute(kernel)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("kind", ["runtime", 1, nisa.engine.dma])
def test_a_kind_is_a_member_of_dependency(kind: Any) -> None:
    message = refusal(lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), 0).depends_on(kind=kind))
    assert message == f"NkiInstruction.depends_on: kind must be a member of nki.isa.dependency, got {kind!r}"


def test_an_order_for_the_compiler_alone_may_leave_a_loop() -> None:
    """The hardware cannot wait for what a loop keeps to itself: see test_loops.py."""
    seen: list[nisa.NkiInstruction] = []

    def kernel() -> None:
        made = nl.ndarray((2, 2), nl.float32)
        nl.fori_loop(0, 1, lambda _: seen.append(nisa.memset(made, 0)))
        nisa.memset(made, 1).depends_on(*seen, kind=SCHEDULE)

    execute(kernel)
    assert len(seen) == 1
