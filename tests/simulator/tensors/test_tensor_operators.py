# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Python's operators on tensors, refused with the function to use, and the texts of a tensor.

Identity and hashing stay. A tensor is one line in messages, and its values under `print` and in a debugger.
"""

from __future__ import annotations

import operator
import re
import statistics
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, TensorTypeError
from nkilib.simulator.tensors.device_integers import VirtualRegister
from nkilib.simulator.tensors.tensor import NkiTensor
from nkilib.simulator.terms.dtypes import ALL_DTYPES, DType
from nkilib.simulator.terms.other_names import NUMPY_NAMES
from tests.fresh_python import with_checkout
from tests.hangs import HANG_SECONDS
from tests.simulator.frame import counted, empty, in_hbm, in_sbuf, indices, refused, run, tensor_of
from tests.simulator.kernels import load

BINARY = [
    (operator.add, "+", "nl.add"),
    (operator.sub, "-", "nl.subtract"),
    (operator.mul, "*", "nl.multiply"),
    (operator.truediv, "/", "nl.divide"),
    (operator.floordiv, "//", "nl.divide and nl.floor"),
    (operator.mod, "%", "nl.mod"),
    (operator.pow, "**", "nl.power"),
    (operator.matmul, "@", "nl.matmul"),
    (operator.and_, "&", "nl.bitwise_and"),
    (operator.or_, "|", "nl.bitwise_or"),
    (operator.xor, "^", "nl.bitwise_xor"),
    (operator.lshift, "<<", "nl.left_shift"),
    (operator.rshift, ">>", "nl.right_shift"),
]
COMPARISONS = [
    (operator.lt, "<", "nl.less"),
    (operator.le, "<=", "nl.less_equal"),
    (operator.gt, ">", "nl.greater"),
    (operator.ge, ">=", "nl.greater_equal"),
]
UNARY = [(operator.neg, "-", "nl.negative"), (abs, "abs()", "nl.abs"), (operator.invert, "~", "nl.invert")]


def tensor() -> Any:
    return nl.NkiTensor((2, 3), nl.float32, None)


def message(compute: Any, *operands: Any) -> str:
    with pytest.raises(TypeError) as caught:
        compute(*operands)
    return str(caught.value)


@pytest.mark.parametrize(("compute", "symbol", "function"), BINARY + COMPARISONS, ids=lambda item: str(item))
def test_operators_of_two_operands(compute: Any, symbol: str, function: str) -> None:
    expected = f"tensor [2, 3] float32 in sbuf: Python's {symbol} is no operation of NKI on tensors; use {function}"
    assert message(compute, tensor(), 2.0) == message(compute, tensor(), tensor()) == expected


@pytest.mark.parametrize(("compute", "symbol", "function"), BINARY, ids=lambda item: str(item))
@pytest.mark.parametrize("number", [2, 2.0, np.float32(2)], ids=repr)
def test_a_number_first(compute: Any, symbol: str, function: str, number: Any) -> None:
    assert f"Python's {symbol} is no operation" in message(compute, number, tensor())


@pytest.mark.parametrize(("compute", "symbol", "function"), UNARY, ids=lambda item: str(item))
def test_operators_of_one_operand(compute: Any, symbol: str, function: str) -> None:
    assert message(compute, tensor()).endswith(f"Python's {symbol} is no operation of NKI on tensors; use {function}")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * 2.0,
        lambda x: np.exp(x),
        lambda x: range(x),
        lambda x: np.mean(x),
        lambda x: np.mean([x]),
        lambda x: statistics.fmean([x]),
    ],
)
def test_in_a_kernel_the_error_names_the_line_and_is_a_type_error(compute: Any) -> None:
    assert issubclass(TensorTypeError, TypeError) and issubclass(TensorTypeError, NkiValidationError)
    text = refused(TensorTypeError, lambda: run(compute, np.zeros((2, 3), np.float32)))
    assert text.startswith(f"{__file__}:{compute.__code__.co_firstlineno}: tensor 'x' [2, 3] float32 in private_hbm: ")


def test_adding_to_a_tile_in_psum_is_answered_with_the_matmul_that_adds() -> None:
    x: Any = tensor_of(np.zeros((2, 3), np.float32), nl.psum)
    with pytest.raises(TensorTypeError, match=r"Python's \+= .*; use nisa\.nc_matmul\(t, stationary, moving\), which"):
        x += x


def test_assignment_with_an_operator() -> None:
    x = tensor()
    with pytest.raises(TypeError, match=r"use nl\.add"):
        x += 1


def test_every_function_that_is_named_exists() -> None:
    named = {name for *_, names in BINARY + COMPARISONS + UNARY for name in names.split(" and ")}
    assert all(callable(getattr(nl, name.removeprefix("nl."))) for name in named)


@pytest.mark.parametrize("compute", [np.sum, np.exp, np.asarray, lambda x: np.add(x, 1), lambda x: np.ones(3) @ x])
def test_numpy_does_not_take_a_tensor_for_an_object(compute: Any) -> None:
    """np.sum of an object is that object: the kernel would go on with what it had."""
    assert " no operation of NKI on tensors" in message(compute, tensor()) or message(compute, tensor()) == (
        "tensor [2, 3] float32 in sbuf: numpy cannot compute with a tensor; use the functions of nki.language (in a "
        "debugger, .array is a numpy view)"
    )


@pytest.mark.parametrize(
    ("compute", "name", "use"),
    [
        (np.exp, "exp", "nl.exp, or nisa.activation(dst, op=nl.exp, data=data)"),
        (np.abs, "absolute", "nl.abs, or nisa.activation(dst, op=nl.abs, data=data)"),
        (np.sum, "sum", "nl.sum, or nisa.tensor_reduce(dst, op=nl.add, data=data, axis=1)"),
        (
            np.mean,
            "mean",
            "nl.mean, or nisa.tensor_reduce(dst, op=nl.add, data=data, axis=1) and nisa.tensor_scalar(dst, dst, "
            "op0=nl.multiply, operand0=1 / n)",
        ),
        (np.std, "std", "nl.sqrt(nl.var(x, axis))"),
        (lambda x: np.concatenate([x, x]), "concatenate", "one larger tile, and nisa.tensor_copy to a slice of it"),
        (np.add.reduce, "add.reduce", "the functions of nki.language (in a debugger, .array is a numpy view)"),
        (np.median, "median", "the functions of nki.language (in a debugger, .array is a numpy view)"),
    ],
)
def test_a_function_of_numpy_is_refused_by_its_name_with_what_to_use(compute: Any, name: str, use: str) -> None:
    expected = f"tensor [2, 3] float32 in sbuf: numpy's {name} is no operation of NKI on tensors; use {use}"
    assert message(compute, tensor()).startswith(expected)


def test_a_method_that_tensors_of_other_libraries_have_is_answered_with_what_to_use() -> None:
    tile = tensor()
    with pytest.raises(
        AttributeError, match=r"^'NkiTensor' object has no attribute 'sum'; to compute, use nl\.sum, or"
    ):
        tile.sum(axis=1)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'rsqrt'; to compute, use the functions of nki\.language"):
        tile.rsqrt()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute '_private'$"):
        tile._private  # type: ignore[attr-defined]  # noqa: B018


def test_functions_of_numpy_that_compute_nothing() -> None:
    assert (np.shape(tensor()), np.ndim(tensor()), np.size(tensor())) == ((2, 3), 2, 6)


def test_what_is_named_in_place_of_numpy_exists() -> None:
    named = [found for use in NUMPY_NAMES.values() for found in re.findall(r"\b(nl|nisa)\.(\w+)", use)]
    assert named and all(name in {"nl": nl, "nisa": nisa}[module].__all__ for module, name in named)


def test_the_reductions_that_are_named_in_place_of_numpy_run() -> None:
    calls = [
        call
        for name in ("sum", "max", "min", "prod", "mean", "exp")
        for call in re.split(r", or | and ", NUMPY_NAMES[name])
        if call.startswith("nisa.")
    ]

    def body(x: Any) -> None:
        names = {"nl": nl, "nisa": nisa, "data": load(x), "dst": nl.ndarray((2, 1), nl.float32), "n": 3}
        for call in calls:
            whole = names | {"dst": nl.ndarray((2, 3), nl.float32)} if "activation" in call else names
            eval(call, whole)

    run(body, np.ones((2, 3), np.float32))
    assert len(calls) == 7


@pytest.mark.parametrize("compute", [int, float, range, lambda x: [1, 2][x]])
def test_a_tensor_is_no_number(compute: Any) -> None:
    assert message(compute, tensor()) == (
        "tensor [2, 3] float32 in sbuf: the values of a tensor are not known while the kernel is being built; "
        "nisa.register_load brings one into a register"
    )


def test_tensors_are_equal_to_themselves_only_and_hash() -> None:
    x, y = tensor(), tensor()
    assert (x == x) is True and (x == y) is False and len({x, y}) == 2
    for other in (np.float32(1), np.ones(3)):
        assert (x == other) is False and (other == x) is False and (other != x) is True
    with pytest.raises(TypeError, match=r"numpy's equal is no operation of NKI on tensors; use nl\.equal"):
        np.equal(x, 1)


def values_of(text: str) -> str:
    """Return what `str` shows below the line that describes the tensor."""
    return text.partition("\n")[2]


def mark(view: NkiTensor) -> None:
    view.storage.written.mark(view.layout, view.storage.width_of(view.dtype))


# -- one line --------------------------------------------------------------------------------------------------


def test_repr_and_f_strings_are_one_line() -> None:
    t = tensor_of(counted(4, 6), nl.sbuf, "logits")
    line = "tensor 'logits' [4, 6] float32 in sbuf"
    assert repr(t) == f"{t}" == f"{t!r}" == "{}".format(t) == line  # noqa: UP032
    assert f"{t:>50}" == line.rjust(50)
    assert repr([t, {"x": t}]) == f"[{line}, {{'x': {line}}}]"


def test_percent_and_print_show_the_values() -> None:
    t = in_hbm(counted(2, 2))
    expected = "tensor [2, 2] float32 in private_hbm\n[[0. 1.]\n [2. 3.]]"
    assert str(t) == f"{t!s}" == "%s" % t == expected  # noqa: UP031


# -- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        counted(3, 4),
        np.linspace(-1, 3, 24, dtype=np.float32).reshape(4, 6),
        np.array([1e-20, 1, np.nan, -np.inf], np.float32),
        np.array([[-(2**31), 7]], np.int32),
        counted(2, 2, 3, dtype=np.int16),
        counted(30, 40),  # more than the threshold, 1000
        counted(3, 1000, 2),
        counted(5000),
        counted(2, 3, 2, 3, 2, 5, 6),
        np.array(3.5, np.float32),
        counted(0, 3),
    ],
    ids=lambda array: str(array.shape),
)
@pytest.mark.parametrize("edgeitems", [3, 1])
def test_values_are_printed_as_numpy_prints_them(array: Any, edgeitems: int) -> None:
    with np.printoptions(edgeitems=edgeitems):
        expected = "3.5" if array.ndim == 0 else str(array)
        assert values_of(str(in_hbm(array))) == expected


def test_numpys_print_options_apply() -> None:
    t = in_hbm(np.array([[1 / 3, 2 / 3, 1]], np.float32))
    with np.printoptions(precision=2):
        assert values_of(str(t)) == "[[0.33 0.67 1.  ]]"
    with np.printoptions(threshold=2, edgeitems=1, precision=1):
        assert values_of(str(t)) == "[[0.3 ... 1. ]]"


def test_a_view_shows_its_own_elements() -> None:
    array = counted(4, 6)
    assert values_of(str(in_sbuf(array)[1:3, ::2])) == str(array[1:3, ::2])
    assert values_of(str(in_hbm(array).permute((1, 0)))) == str(array.T)
    assert values_of(str(in_hbm(array[:1]).broadcast(0, 2))) == str(np.repeat(array[:1], 2, 0))


def test_unwritten_elements_are_dashes_of_the_width_of_the_others() -> None:
    t = empty(2, 3)
    assert values_of(str(t)) == "[[-- -- --]\n [-- -- --]]"
    t.array[0] = [-1.25, 10, 3]
    mark(t[0:1, :2])
    assert values_of(str(t)) == "[[-1.25 10.      --]\n [   --    --    --]]"
    t.array[1] = 0
    mark(t)
    assert values_of(str(t)) == "[[-1.25 10.    3.  ]\n [ 0.    0.    0.  ]]"


def test_unwritten_elements_show_at_the_edges_of_a_large_tensor() -> None:
    t = empty(100, 100, dtype=nl.int32)
    t.array[...] = 7
    mark(t[:, :99])
    with np.printoptions(edgeitems=1):
        assert values_of(str(t)) == "[[ 7 ... --]\n ...\n [ 7 ... --]]"


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_type_prints_and_a_half_written_element_is_unwritten(dtype: DType) -> None:
    t = empty(1, 2, dtype=dtype)
    bits = t.array.view(np.uint8)
    bits[...] = 0
    bits[0, 0] = 1  # the lowest bit of the first element; the others are zero
    mark(t[:, :1])
    first, second = values_of(str(t)).strip("[]").split()
    assert np.array(float(first)).astype(t.array.dtype) == t.array[0, 0]  # as few digits as tell the value
    assert second == "--"
    if dtype.itemsize > 1:
        mark(t.view(nl.uint8)[:, dtype.itemsize : dtype.itemsize + 1])
        assert values_of(str(t)).strip("[]").split()[1] == "--"


def test_indirect_views_and_tensors_without_a_storage_print_too() -> None:
    gathered = in_hbm(counted(4, 6)).vector_select(0, indices(3, 1))
    assert str(gathered) == (
        "tensor [2, 6] float32 in private_hbm\n"
        "at an address that is read at run time from tensor [2, 1] int32 in sbuf\n[[3]\n [1]]"
    )
    assert str(in_hbm(counted(4, 6))[VirtualRegister(2)]) == (
        "tensor [6] float32 in private_hbm\nat an address that is read at run time from VirtualRegister(2)"
    )
    assert str(NkiTensor((2, 3), nl.int32, None)) == "tensor [2, 3] int32 in sbuf\nwithout a storage"


def test_printing_a_huge_tensor_copies_a_corner_of_it() -> None:
    t = in_hbm(np.zeros((4096, 4096), np.float32))  # 64 MiB
    part = empty(4096, 4096)
    mark(part[5])  # makes the mask, of which a copy would take 16 MiB
    tracemalloc.start()
    try:
        assert str(t.permute((1, 0))).count("...") == 7 and str(part).count("--") == 36
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


# -- in a kernel -----------------------------------------------------------------------------------------------


def test_a_kernel_prints_its_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(source: Any) -> Any:
        tile = nl.ndarray((2, 2), nl.float32, name="tile")
        print(tile)
        nisa.dma_copy(tile, source)
        print(tile)
        print(f"{source} -> {tile}, {nisa.register_alloc(5)}")
        return source

    run(kernel, counted(2, 2))
    assert capsys.readouterr().out == (
        "tensor 'tile' [2, 2] float32 in sbuf\n[[-- --]\n [-- --]]\n"
        "tensor 'tile' [2, 2] float32 in sbuf\n[[0. 1.]\n [2. 3.]]\n"
        "tensor 'source' [2, 2] float32 in private_hbm -> tensor 'tile' [2, 2] float32 in sbuf, VirtualRegister(5)\n"
    )


SCRIPT = """
import numpy as np
from nkilib.nki import nisa, nki, nl

@nki.jit
def kernel(source):
    core = nl.program_id(0)
    tile = nl.ndarray(source.shape, source.dtype, nl.sbuf, name="tile")
    copied = nisa.dma_copy(tile, source, name="load")
    if core == 0: breakpoint()
    nisa.memset(tile, 7)
    result = nl.ndarray(source.shape, source.dtype, nl.shared_hbm)
    nisa.dma_copy(result[core], tile[0])
    return result

print(kernel[{cores}](np.arange(4, dtype=np.float32).reshape(2, 2))[0])
"""


@pytest.mark.parametrize("cores", [1, 2])
def test_a_breakpoint_stops_in_the_kernel_and_shows_its_tensors(tmp_path: Path, cores: int) -> None:
    """Core 0 runs in the calling thread, where a debugger works."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(cores=cores))
    commands = "p tile\np copied\nprint(tile)\np tile.array[1, 1] + 10\nuntil 12\nprint(tile)\nc\n"
    done = subprocess.run(
        [sys.executable, script],
        env=with_checkout(),
        input=commands,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "tensor 'tile' [2, 2] float32 in sbuf\n(Pdb) <nisa.dma_copy load>\n" in done.stdout
    assert "(Pdb) tensor 'tile' [2, 2] float32 in sbuf\n[[0. 1.]\n [2. 3.]]\n(Pdb) " in done.stdout
    assert "13.0" in done.stdout
    assert "(Pdb) tensor 'tile' [2, 2] float32 in sbuf\n[[7. 7.]\n [7. 7.]]\n(Pdb) " in done.stdout
    assert done.stdout.endswith("[7. 7.]\n")
