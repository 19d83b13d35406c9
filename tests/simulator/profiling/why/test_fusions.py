# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Pairs of instructions that one can do are found, with a call to write that computes the same in the stated time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator import ModelParameters, Profile, profile, spec
from tests.simulator.profiling.why.test_followed_advice import kernel_of

KERNEL = """from nkilib.nki import nisa, nki, nl


@nki.jit
def kernel(x, y, v):
    a, b, s = (nl.ndarray(values.shape, nl.float32) for values in (x, y, v))
    nisa.dma_copy(a, x)
    nisa.dma_copy(b, y)
    nisa.dma_copy(s, v)
    for _ in range(8):
        t, o = nl.ndarray(a.shape, nl.float32), nl.ndarray(a.shape, nl.float32)
        r, negative = nl.ndarray((128, 1), nl.float32), nl.ndarray((128, 1), nl.float32)
        {calls}
    result = nl.ndarray({stored}.shape, nl.float32, nl.shared_hbm)
    nisa.dma_copy(result, {stored})
    return result
"""
FIRST_LINE = 1 + KERNEL[: KERNEL.index("{calls}")].count("\n")
WIDE, NARROW = "o", "r"
SUM = "nisa.tensor_reduce(r, nl.add, t, axis=1)"
# By name: the two calls, what is stored, and the calls to write instead.
PAIRS = {
    "square and sum": (
        ["nisa.tensor_tensor(t, a, a, nl.multiply)", SUM],
        NARROW,
        ["nisa.activation_reduce(t, nl.square, a, reduce_op=nl.add, reduce_res=r)"],
    ),
    "product and sum": (
        ["nisa.tensor_tensor(t, a, b, nl.multiply)", SUM],
        NARROW,
        [
            "nisa.scalar_tensor_tensor(t, a, nl.multiply, 1.0, nl.multiply, b, reduce_op=nl.add, reduce_res=r)",
        ],
    ),
    "activation and sum": (
        ["nisa.activation(t, nl.exp, a, scale=0.5)", SUM],
        NARROW,
        ["nisa.activation_reduce(t, nl.exp, a, reduce_op=nl.add, reduce_res=r, scale=0.5)"],
    ),
    "scalar and maximum": (
        ["nisa.tensor_scalar(t, a, nl.multiply, s)", "nisa.tensor_reduce(r, nl.maximum, t, axis=1)"],
        NARROW,
        ["nisa.tensor_scalar_reduce(t, a, nl.multiply, s, reduce_op=nl.maximum, reduce_res=r)"],
    ),
    "scalar and tile": (
        ["nisa.tensor_scalar(t, a, nl.multiply, s)", "nisa.tensor_tensor(o, t, b, nl.add)"],
        WIDE,
        ["nisa.scalar_tensor_tensor(o, a, nl.multiply, s, nl.add, b)"],
    ),
    "tile minus scalar": (
        ["nisa.tensor_scalar(t, a, nl.multiply, s)", "nisa.tensor_tensor(o, b, t, nl.subtract)"],
        WIDE,
        ["nisa.scalar_tensor_tensor(o, a, nl.multiply, s, nl.subtract, b, reverse1=True)"],
    ),
    "multiply and add": (
        ["nisa.tensor_scalar(t, a, nl.multiply, s)", "nisa.tensor_scalar(o, t, nl.add, 1.5)"],
        WIDE,
        ["nisa.tensor_scalar(o, a, nl.multiply, s, op1=nl.add, operand1=1.5)"],
    ),
    "scale and bias": (
        ["nisa.tensor_scalar(t, a, nl.multiply, s, op1=nl.add, operand1=0.25)", "nisa.activation(o, nl.exp, t)"],
        WIDE,
        ["nisa.activation(o, nl.exp, a, bias=0.25, scale=s)"],
    ),
    "shift": (
        ["nisa.tensor_scalar(t, a, nl.subtract, s)", "nisa.activation(o, nl.exp, t)"],
        WIDE,
        ["nisa.tensor_scalar(negative, s, nl.multiply, -1.0)", "nisa.activation(o, nl.exp, a, bias=negative)"],
    ),
    "sigmoid times": (
        ["nisa.activation(t, nl.sigmoid, a)", "nisa.tensor_tensor(o, t, a, nl.multiply)"],
        WIDE,
        ["nisa.activation(o, nl.silu, a)"],
    ),
    "copy and pass": (
        ["nisa.tensor_copy(t, a, engine=nisa.engine.vector)", "nisa.tensor_tensor(o, t, b, nl.add)"],
        WIDE,
        ["nisa.tensor_tensor(o, a, b, nl.add)"],
    ),
    "pass and cast": (
        ["nisa.tensor_tensor(t, a, b, nl.add)", "nisa.tensor_copy(o, t, engine=nisa.engine.vector)"],
        WIDE,
        ["nisa.tensor_tensor(o, a, b, nl.add)"],
    ),
}
# What looks alike: another reader of the tile, a sum over a part, another tile in between.
ALONE = {
    "two readers": [
        "nisa.tensor_scalar(t, a, nl.multiply, s)",
        "nisa.tensor_tensor(o, t, b, nl.add)",
        "nisa.tensor_tensor(b, t, a, nl.add)",
    ],
    "an operand": ["nisa.tensor_scalar(r, s, nl.multiply, 2.0)", "nisa.tensor_scalar(o, a, nl.subtract, r)"],
    "overwritten": [
        "nisa.tensor_scalar(t, a, nl.multiply, s)",
        "nisa.memset(a, 0.0, engine=nisa.engine.vector)",
        "nisa.tensor_tensor(o, t, a, nl.add)",
    ],
}


def text_of(calls: list[str], stored: str) -> str:
    return KERNEL.format(calls="\n        ".join(calls), stored=stored)


def profiled(text: str, path: Path) -> Profile:
    shapes = [spec((128, columns), nl.float32) for columns in (4096, 4096, 1)]
    # All iterations compute the same, of which the compiler keeps one.
    return profile(kernel_of(text, path), *shapes, parameters=ModelParameters(hoists_invariants=False))


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_found_with_the_call_to_write_and_its_saving(name: str, tmp_path: Path) -> None:
    calls, stored, instead = PAIRS[name]
    before = profiled(text_of(calls, stored), tmp_path / "before.py")
    found = [finding for finding in before.why if finding.about == "fusion"]
    (fusion,) = [finding for finding in found if list(finding.calls) == instead]
    after = profiled(text_of(instead, stored), tmp_path / "after.py")
    assert before.time_us - after.time_us == pytest.approx(fusion.saved_us, rel=0.01)
    assert [place.rpartition(":")[2] for place in fusion.places] == [str(FIRST_LINE), str(FIRST_LINE + 1)]


@pytest.mark.parametrize("name", PAIRS)
def test_the_call_to_write_computes_the_same(name: str, tmp_path: Path) -> None:
    calls, stored, instead = PAIRS[name]
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((128, 64), np.float32) for _ in range(2))
    v = rng.standard_normal((128, 1), np.float32)
    before, after = (
        kernel_of(text_of(some, stored), tmp_path / f"version_{number}.py")(x, y, v)
        for number, some in enumerate((calls, instead))
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALONE)
def test_what_one_instruction_cannot_do_is_no_fusion(name: str, tmp_path: Path) -> None:
    findings = profiled(text_of(ALONE[name], WIDE), tmp_path / "alone.py").why
    assert "fusion" not in [finding.about for finding in findings]
