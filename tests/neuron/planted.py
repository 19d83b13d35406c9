# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small kernels that go wrong on NKI 0.7, each beside what to write instead. `tile` is [4, 8] float32 in SBUF."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

_HEADER: Final = """\
from nkilib.nki import nisa, nki, nl


@nki.jit
def kernel(rows):
    tile = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.sbuf)
    load = nisa.dma_copy(dst=tile, src=rows)
    register = nisa.register_alloc(3)
    times = 0
"""
_FOOTER: Final = """\
    result = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=tile)
    return result
"""
_STEERS: Final = "has its value on the device only and cannot steer Python"


@dataclass(frozen=True)
class Case:
    """A kernel that is refused, and its corrected twin.

    Attributes:
        name: the name of the mistake.
        refused: lines between the two parts above.
        error: type of the error and a part of its message.
        instead: lines that run in their place.
    """

    name: str
    refused: str
    error: tuple[str, str]
    instead: str


def _steering(name: str, refused: str, instead: str, of: str = "VirtualRegister") -> Case:
    return Case(name, refused, ("TypeError", f"a {of} {_STEERS}"), instead)


_ADD: Final = "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)"
_DOUBLE: Final = "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)"
_LOOP: Final = f"""\
def body(_):
    {_ADD}
nl.fori_loop(0, register, body)
"""

UNDOCUMENTED: Final = (
    Case("name in nl", "flag = nl.bool", ("AttributeError", "has no attribute 'bool'"), "flag = nl.bool_"),
    Case("name in nisa", "nisa.constants", ("AttributeError", "has no attribute 'constants'"), "nisa.engine.vector"),
    Case("name in nki", "nki.Kernel", ("AttributeError", "has no attribute 'Kernel'"), "nki.jit"),
    Case("member", "nisa.engine.pool", ("AttributeError", "pool"), "nisa.engine.gpsimd"),
    Case(
        "argument of an instruction",
        "nisa.memset(dst=tile, value=0.0, where=None)",
        ("TypeError", "nki.isa.memset() got an unexpected keyword argument 'where'"),
        "nisa.memset(dst=tile, value=0.0)",
    ),
    Case(
        "argument of a method",
        "tile.slice(0, 0, 2, stride=1)",
        ("ArgumentTypeError", "NkiTensor.slice: got an unexpected keyword argument 'stride'; did you mean 'step'?"),
        "tile.slice(0, 0, 2, step=1)",
    ),
    Case("attribute of a tensor", "tile.layout", ("AttributeError", "no attribute 'layout'"), "tile.get_pattern()"),
    Case("values of a tensor", "tile.array", ("AttributeError", "no attribute 'array'"), "tile[0:1, 0:1]"),
    Case(
        "method of a tensor",
        "tile.is_on_chip()",
        ("AttributeError", "no attribute 'is_on_chip'"),
        "nl.is_on_chip(tile.buffer)",
    ),
    Case("arithmetic on a tensor", "tile + 1.0", ("TypeError", "unsupported operand type(s) for +"), _ADD),
    Case("attribute of a type", "tile.dtype.itemsize", ("AttributeError", "'itemsize'"), "tile.dtype == nl.float32"),
    Case(
        "method of a register",
        "register.write(2)",
        ("AttributeError", "no attribute 'write'"),
        "nisa.register_move(register, 2)",
    ),
    Case(
        "attribute of an instruction",
        "load.line",
        ("AttributeError", "no attribute"),
        "load.depends_on(kind=nisa.dependency.runtime)",
    ),
    Case(
        "order without a kind",
        "load.depends_on()",
        ("DeprecationWarning", "depends_on() without kind= is deprecated"),
        "load.depends_on(kind=nisa.dependency.schedule)",
    ),
    Case(
        "limit of the target",
        "nl.tile_size.fmax",
        ("AttributeError", "nl.tile_size has no documented attribute 'fmax'"),
        "nl.tile_size.pmax",
    ),
    Case(
        "value of another library",
        "import numpy\nnisa.memset(dst=tile, value=numpy.float32(2))",
        ("TypeError", "NKI takes no numpy.float32"),
        "nisa.memset(dst=tile, value=2.0)",
    ),
    Case(
        "loop that 0.7 removed",
        "for _ in nl.dynamic_range(3):\n    times += 1",
        ("TypeError", "nki.language.dynamic_range was removed in NKI 0.7"),
        _LOOP,
    ),
    Case(
        "operator of a scalar",
        "nl.fori_loop(0, 2, lambda i: i // 2)",
        ("TypeError", "unsupported operand type(s) for //"),
        "def body(i):\n    nisa.dma_copy(dst=tile, src=rows[nl.ds(i * 2 - 2 * i, 4)])\nnl.fori_loop(0, 2, body)",
    ),
    Case(
        "use of a comparison of scalars",
        "def body(i):\n    nl.fori_loop(0, i < 2, body)\nnl.fori_loop(0, 2, body)",
        ("RegisterTypeError", "is the result of a comparison of scalars"),
        "nl.fori_loop(0, 2, lambda i: nl.fori_loop(0, i * i, lambda j: None))",
    ),
    Case(
        "number for a scalar",
        "word = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)\nnisa.scalar_store(word, 3)",
        ("NkiValidationError", "operand 'value' must be an NkiScalar, got 3"),
        "word = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)\nnisa.register_store(word, register)\n"
        "nisa.scalar_store(word, nisa.scalar_load(word) + 3)",
    ),
    Case(
        "the simulator",
        "from nkilib.simulator.api import language",
        ("ImportError", "kernel_of_a_case imports nkilib.simulator.api"),
        "from nkilib.core.hardware import div_ceil",
    ),
    Case(
        "the simulator by its package",
        "from nkilib import simulator",
        ("ImportError", "kernel_of_a_case imports nkilib.simulator: "),
        "from nkilib import core",
    ),
)

STEERING: Final = (
    _steering("register in if", f"if register:\n    {_ADD}", _LOOP),
    _steering("register in while", f"while register:\n    {_ADD}", _LOOP),
    _steering("register in not", "times = not register", "times = register is None"),
    _steering("register in range", f"for _ in range(register):\n    {_ADD}", _LOOP),
    _steering("register in int", "times = int(register)", "times = int(3.0)"),
    _steering("register as an index of a list", "times = [1, 2, 3, 4][register]", "times = [1, 2, 3, 4][3]"),
    _steering("register compared", "times = register < 4", "times = 3 < 4"),
    _steering("register equals", "times = register == 3", "times = register is not None"),
    _steering("register in min", "times = min(register, 4)", "times = min(3, 4)"),
    _steering(
        "value of a loop",
        f"def body(index):\n    if index:\n        {_ADD}\nnl.fori_loop(0, 2, body)",
        f"def body(index):\n    {_ADD}\nnl.fori_loop(1, 2, body)",
        "NkiScalar",
    ),
    _steering(
        "value of a loop equals",
        f"def body(index):\n    if index == 1:\n        {_ADD}\nnl.fori_loop(0, 2, body)",
        f"for index in range(2):\n    if index == 1:\n        {_ADD}",
        "NkiScalar",
    ),
    _steering("tensor in if", f"if tile:\n    {_ADD}", f"if tile is not None:\n    {_ADD}", "NkiTensor"),
    _steering("element in if", f"if tile[0:1, 0:1]:\n    {_ADD}", _ADD, "NkiTensor"),
    _steering("element in float", "times = float(tile[0:1, 0:1])", "times = 2.0", "NkiTensor"),
    _steering("element in range", "times = [*range(tile[0:1, 0:1])]", "times = [*range(4)]", "NkiTensor"),
    _steering("tensor in for", "for row in tile:\n    pass", "for row in tile.shape:\n    pass", "NkiTensor"),
    _steering("tensor in len", "times = len(tile)", "times = tile.shape[0]", "NkiTensor"),
    _steering("number in a tensor", "times = 1.0 in tile", "times = 4 in tile.shape", "NkiTensor"),
    _steering("tensor compared", "times = tile > 0.0", _DOUBLE, "NkiTensor"),
)

CASES: Final = {case.name: case for case in (*UNDOCUMENTED, *STEERING)}


def _outcome(lines: str, directory: Path) -> str | None:
    """Return the error that launching a kernel with these lines raises, as `Type: message`; None if it runs."""
    directory.mkdir()
    source = _HEADER + textwrap.indent(lines.rstrip(), "    ") + "\n" + _FOOTER
    (directory / "kernel_of_a_case.py").write_text(source, encoding="utf-8")
    sys.path.insert(0, str(directory))
    try:
        kernel = importlib.import_module("kernel_of_a_case").kernel
        kernel(np.ones((4, 8), np.float32))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop("kernel_of_a_case", None)
    return None


def main(directory: str) -> None:
    """Launch everything, and print by case what the kernel and its twin raised."""
    root = Path(directory)
    print(
        json.dumps(
            {
                case.name: [
                    _outcome(lines, root / f"{number}-{kind}")
                    for kind, lines in (("refused", case.refused), ("instead", case.instead))
                ]
                for number, case in enumerate(CASES.values())
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
