# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nl.device_print`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ..kernels import execute, tile
from ..made import Hbm, Psum, Sbuf, lazily
from ..rules import Rule, broken, check_rule, legal, rules


def test_prefix_tensor_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    def body(data: Any) -> None:
        nl.device_print("the input", data)
        nl.device_print(print_prefix="its tile", tensor=nl.load(data))

    nki.jit(body)(np.array([[1.5, -2], [3, 4]], np.float32))
    assert capsys.readouterr().out == (
        "the input: tensor 'data' [2, 2] float32 in private_hbm\n[[1.5 -2.]\n [3.  4. ]]\n"
        "its tile: tensor [2, 2] float32 in sbuf\n[[1.5 -2.]\n [3.  4. ]]\n"
    ).replace("[[1.5 -2.]\n [3.  4. ]]", str(np.array([[1.5, -2], [3, 4]], np.float32)))


def test_it_prints_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints what the tile holds when the call is made, in program order with what Python prints."""

    def body() -> None:
        made = tile(1, 1, dtype=nl.int32, value=1)
        nl.device_print("before", made)
        print("between")
        nisa.memset(made, 2)
        nl.device_print("after", made)

    execute(body)
    assert capsys.readouterr().out == (
        "before: tensor [1, 1] int32 in sbuf\n[[1]]\nbetween\nafter: tensor [1, 1] int32 in sbuf\n[[2]]\n"
    )


def test_views_and_types(capsys: pytest.CaptureFixture[str]) -> None:
    def body(data: Any) -> None:
        nl.device_print("column", nl.load(data)[:, 1:2])

    nki.jit(body)(np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16))
    out = capsys.readouterr().out
    assert out.startswith("column: tensor [2, 1] bfloat16 in sbuf\n")
    assert [float(word.strip("[]")) for word in out.split("\n", 1)[1].split()] == [2, 4]


def test_a_row_chosen_at_run_time(capsys: pytest.CaptureFixture[str]) -> None:
    def body(data: Any) -> None:
        nl.device_print("row", data.select(0, tile(1, 1, dtype=nl.int32, value=1)))

    nki.jit(body)(np.array([[1, 2], [3, 4]], np.int32))
    assert capsys.readouterr().out == "row: tensor 'data' [2] int32 in private_hbm\n[3 4]\n"


def test_unwritten_elements_show_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """Looking at a tile is no use of it, even where `uninitialized="error"`, as here."""

    def body() -> None:
        made = nl.ndarray((1, 3), nl.int32)
        nisa.memset(made[:, 1:2], 7)
        nl.device_print("partly written", made)

    execute(body)
    assert capsys.readouterr().out.split("\n")[1].split() == ["[[--", "7", "--]]"]


def test_on_two_cores_it_says_which_one_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Each in one piece."""
    execute(lambda: nl.device_print("core number", tile(1, 1, dtype=nl.int32, value=nl.program_id(0))), cores=2)
    lines = capsys.readouterr().out.split("\n")
    pieces = {tuple(lines[0:2]), tuple(lines[2:4])}
    assert pieces == {(f"core number (core {core}): tensor [1, 1] int32 in sbuf", f"[[{core}]]") for core in range(2)}


def test_nothing_is_recorded() -> None:
    with nkilib.simulator.recording() as record:
        execute(lambda: nl.device_print("tile", nl.ndarray((1, 1), nl.float32)))
    assert record.instruction_counts == {}
    assert record.hbm_read_bytes == 0


@rules(
    legal(nl.device_print, print_prefix="1", tensor=Sbuf(1, 1)),
    broken("prefix", print_prefix=1).says("print_prefix must be a string, got 1"),
    legal(nl.device_print, print_prefix="tile", tensor=lazily(nl.copy, Psum(1, 1))),
    broken("PSUM", tensor=Psum(1, 1)).says("tensor must be in sbuf or HBM, got {tensor}; bring it there with nl.copy"),
    legal(nl.device_print, print_prefix="number", tensor=Sbuf(1, 1, value=3)),
    broken("no tensor", tensor=3.0).says("tensor must be in sbuf or HBM, got 3.0; bring it there with nl.copy"),
    legal(nl.device_print, print_prefix="rows", tensor=Hbm(4, 2)),
    broken("rows chosen at run time", tensor=Hbm(4, 2).vector_select(0, Sbuf(2, 1, dtype=nl.int32))).says(
        "operand 'tensor': only DMA accepts a view with a vector offset, got tensor [2, 2] float32 in private_hbm"
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def test_outside_of_a_kernel() -> None:
    with pytest.raises(nisa.NkiValidationError, match="inside a kernel only"):
        nl.device_print("tile", None)
