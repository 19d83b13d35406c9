# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Texts of a tensor: one line in messages, the values under `print` and in a debugger."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator.tensors.registers import VirtualRegister
from nkilib.simulator.tensors.tensor import NkiTensor
from nkilib.simulator.terms.dtypes import ALL_DTYPES, DType
from tests.fresh_python import with_checkout
from tests.hangs import HANG_SECONDS
from tests.simulator.frame import counted, empty, in_hbm, in_sbuf, indices, run, tensor_of


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
