# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The engines that could run an instruction are those on which its launch is no error, and `why` names no other."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, NkiValidationError, Profile, profile
from nkilib.simulator.machine.issue import REGISTRY
from nkilib.simulator.terms.enums import Engine, reduce_cmd
from tests.simulator.profiling.why import faulty

TARGETS = ("trn1", "trn2", "trn3")
Issue = Callable[..., Any]


def tile(columns: int = 32, dtype: Any = nl.float32, buffer: Any = nl.sbuf, rows: int = 32) -> Any:
    """A tile of ones, in SBUF or PSUM."""
    result = nl.ndarray((rows, columns), dtype, buffer)
    nisa.memset(result, value=1, engine=nisa.engine.vector)
    return result


def indirect(buffer: Any) -> Any:
    """A view that an index chooses from a tile in a region."""
    return tile(64, buffer=buffer).indirect(tile(2, nl.int32))


def scalar_operators(op0: Any, op1: Any = None, dtype: Any = nl.float32) -> Issue:
    """A `tensor_scalar` with one or two operators; a unary one takes no operand."""
    operand0, operand1 = (None if op in (nl.rsqrt, None) else 1 for op in (op0, op1))
    return lambda **engine: nisa.tensor_scalar(
        tile(dtype=dtype), tile(dtype=dtype), op0, operand0, op1=op1, operand1=operand1, **engine
    )


def of_two(op: Any, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Issue:
    return lambda **engine: nisa.tensor_tensor(
        tile(dtype=dtype, buffer=buffer), tile(dtype=dtype), tile(dtype=dtype), op, **engine
    )


def copied(dst: Any, src: Any) -> Issue:
    return lambda **engine: nisa.tensor_copy(tile(buffer=dst), tile(buffer=src), **engine)


def transposed(rows: int, dst: Any, src: Any) -> Issue:
    return lambda **engine: nisa.nc_transpose(tile(rows, buffer=dst), tile(rows=rows, buffer=src), **engine)


def activated(**arguments: Any) -> Issue:
    return lambda **engine: nisa.activation(tile(), nl.exp, tile(), bias=tile(1), **arguments, **engine)


def reduced() -> Issue:
    command = reduce_cmd.reset_reduce
    return lambda **engine: nisa.activation(
        tile(), nl.exp, tile(), bias=tile(1), reduce_op=nl.add, reduce_res=tile(1), reduce_cmd=command, **engine
    )


CALLS: dict[str, Issue] = {
    "tensor_scalar: subtract, multiply": scalar_operators(nl.subtract, nl.multiply),
    "tensor_scalar: add, power": scalar_operators(nl.add, nl.power),
    "tensor_scalar: maximum, multiply": scalar_operators(nl.maximum, nl.multiply),
    "tensor_scalar: multiply, add": scalar_operators(nl.multiply, nl.add),
    "tensor_scalar: add, multiply": scalar_operators(nl.add, nl.multiply),
    "tensor_scalar: multiply": scalar_operators(nl.multiply),
    "tensor_scalar: add": scalar_operators(nl.add),
    "tensor_scalar: subtract": scalar_operators(nl.subtract),
    "tensor_scalar: rsqrt": scalar_operators(nl.rsqrt),
    "tensor_scalar: add, rsqrt": scalar_operators(nl.add, nl.rsqrt),
    "tensor_scalar: bitwise_and": scalar_operators(nl.bitwise_and, dtype=nl.int32),
    "tensor_scalar: indirect": lambda **engine: nisa.tensor_scalar(
        tile(64), indirect(nl.sbuf), nl.multiply, 2.0, **engine
    ),
    "tensor_tensor: add": of_two(nl.add),
    "tensor_tensor: power": of_two(nl.power),
    "tensor_tensor: bitwise_and": of_two(nl.bitwise_and, nl.int32),
    "tensor_tensor: integers": of_two(nl.multiply, nl.int32),
    "tensor_tensor: to PSUM": of_two(nl.add, buffer=nl.psum),
    "tensor_copy": copied(nl.sbuf, nl.sbuf),
    "tensor_copy: from PSUM": copied(nl.sbuf, nl.psum),
    "tensor_copy: to PSUM": copied(nl.psum, nl.sbuf),
    "tensor_copy: gathered": lambda **engine: nisa.tensor_copy(tile(64), indirect(nl.sbuf), **engine),
    "tensor_copy: scattered": lambda **engine: nisa.tensor_copy(indirect(nl.sbuf), tile(64), **engine),
    "tensor_copy: scattered to PSUM": lambda **engine: nisa.tensor_copy(indirect(nl.psum), tile(64), **engine),
    "memset": lambda **engine: nisa.memset(tile(), 0, **engine),
    "memset: of PSUM": lambda **engine: nisa.memset(tile(buffer=nl.psum), 0, **engine),
    "activation": activated(),
    "activation: reduced": reduced(),
    "activate2": lambda **engine: nisa.activate2(
        tile(), nl.exp, tile(), 1.0, 1.0, op0=nl.multiply, op1=nl.add, **engine
    ),
    "nc_transpose": transposed(32, nl.psum, nl.sbuf),
    "nc_transpose: larger": transposed(64, nl.psum, nl.sbuf),
    "nc_transpose: to SBUF": transposed(32, nl.sbuf, nl.sbuf),
    "nc_transpose: from PSUM": transposed(32, nl.psum, nl.psum),
    "rng": lambda **engine: nisa.rng(tile(dtype=nl.uint32), **engine),
    "rand_get_state": lambda **engine: nisa.rand_get_state(tile(6, nl.uint32), **engine),
    "rand_get_state: of Vector": lambda **engine: nisa.rand_get_state(tile(24, nl.uint32), **engine),
    "rand_set_state": lambda **engine: nisa.rand_set_state(tile(6, nl.uint32), **engine),
    "rand_set_state: of Vector": lambda **engine: nisa.rand_set_state(tile(24, nl.uint32), **engine),
}


def launched(issue: Issue, target: str, **engine: Any) -> Profile | None:
    """The profile of a launch of one call; None if it is an error."""

    @nki.jit
    def kernel(_: Any) -> None:
        issue(**engine)

    with nkilib.simulator.using(target=target):
        try:
            return profile(kernel, np.zeros((1, 1), np.float32), parameters=AS_ISSUED)
        except NkiValidationError:
            return None


def accepted(issue: Issue, name: str, target: str) -> dict[str, Profile]:
    """The profiles of the launches that ask for an engine, by its name, without those that are errors."""
    engines = REGISTRY[name].engines
    launches = {engine.name: launched(issue, target, engine=engine) for engine in engines}
    return {engine: launch for engine, launch in launches.items() if launch is not None}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("call", CALLS)
def test_the_other_engines_of_a_call_are_those_on_which_its_launch_is_no_error(call: str, target: str) -> None:
    name, issue = call.partition(":")[0], CALLS[call]
    launches = accepted(issue, name, target)
    default = launched(issue, target)
    for own, launch in launches.items():
        ((_, notes, _),) = launch.recorded._cores
        plan = notes[-1][1]
        assert (plan.name, plan.engine) == (name, own)
        assert set(plan.others) == launches.keys() - {own}
    assert default is None or launches.keys() >= {default.recorded.instructions[-1].engine}


def test_every_instruction_with_a_choice_of_engine_is_here() -> None:
    choosing = {
        name
        for name, definition in REGISTRY.items()
        if "engine" in definition.names and not definition.is_transfer and definition.cost is not None
    }
    assert choosing == {call.partition(":")[0] for call in CALLS}
    assert all("engine" in inspect.signature(getattr(nisa, name)).parameters for name in choosing)


def on_vector(operators: Callable[[Any], Any], **engine: Any) -> Profile:
    """The profile of a kernel whose work is one instruction, 8 times on large tiles."""

    @nki.jit
    def kernel(_: Any) -> None:
        values = faulty.tile()
        nisa.memset(values, 1.0, engine=nisa.engine.gpsimd)
        for _ in range(8):
            operators(functools.partial(nisa.tensor_scalar, faulty.tile(), values, **engine))

    return profile(kernel, np.zeros((128, 1), np.float32), parameters=AS_ISSUED)


@pytest.mark.parametrize(
    "operators",
    [
        lambda issue: issue(nl.subtract, 2.0, op1=nl.multiply, operand1=3.0),
        lambda issue: issue(nl.add, 2.0, op1=nl.power, operand1=0.5),
        lambda issue: issue(nl.maximum, 2.0, op1=nl.multiply, operand1=3.0),
        lambda issue: issue(nl.multiply, 2.0, op1=nl.add, operand1=3.0),
        lambda issue: issue(nl.add, 3.0),
    ],
    ids=["subtract, multiply", "add, power", "maximum, multiply", "multiply, add", "add"],
)
def test_why_names_an_engine_only_where_the_launch_on_it_is_no_error(operators: Callable[[Any], Any]) -> None:
    named = re.findall(r"engine=nisa\.(\w+)_engine", "".join(found.text for found in on_vector(operators).why))
    engines = [engine for engine in REGISTRY["tensor_scalar"].engines if engine.name in named]
    assert len(engines) == len(set(named))
    for engine in engines:
        assert on_vector(operators, engine=engine).engine_busy_us[engine.name] > 0.0
    if not engines:
        with pytest.raises(NkiValidationError, match="the Scalar engine runs multiply then add"):
            on_vector(operators, engine=Engine.scalar)
