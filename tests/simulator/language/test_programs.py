# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.language.programs``: the launch grid, the generation, ``explain_index``, ``nl.device_print``."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.nki
import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError, explain_index

from ..frame import in_hbm, refused, run, without_line, without_place
from ..kernels import execute, load, tile
from ..made import Hbm, Psum, Sbuf, lazily
from ..rules import Rule, broken, check_rule, legal, rules


def test_the_grid_on_each_core() -> None:
    seen: dict[int, Any] = {}

    def kernel() -> None:
        grid = nl.program_id(axis=0), nl.num_programs(), nl.num_programs(axes=0), nl.program_ndim()
        seen[nl.program_id()] = grid

    run(kernel, cores=2)
    assert seen == {0: (0, 2, 2, 1), 1: (1, 2, 2, 1)}


@pytest.mark.parametrize(("function", "name"), [(nl.program_id, "program_id"), (nl.num_programs, "num_programs")])
def test_the_grid_has_one_axis(function: Any, name: str) -> None:
    expected = f"nl.{name}: the launch grid has one axis, 0; got 1"
    assert without_line(refused(NkiValidationError, lambda: run(lambda: function(1), cores=2)), core=0) == expected
    assert without_line(refused(NkiValidationError, lambda: run(lambda: function(1)))) == expected
    assert run(lambda: function(0), cores=2) in (0, 2)


@pytest.mark.parametrize(
    ("target", "generation", "revision"),
    [("trn1", "gen2", 0), ("trn2", "gen3", 0), ("trn3", "gen4", 1), ("trn3_a0", "gen4", 0), ("trn3pre", "gen4", 0)],
)
def test_the_generation(target: str, generation: str, revision: int) -> None:
    def kernel() -> tuple[Any, Any]:
        return nisa.get_nc_version(), nisa.get_nc_sub_version()

    assert run(kernel, target=target) == (nisa.nc_version[generation], revision)


def test_generations_are_ordered_and_compare_with_their_numbers() -> None:
    """Published kernels compare them in both ways; in a message they have their names."""
    assert nisa.nc_version.gen2 < nisa.nc_version.gen3 <= nisa.nc_version.gen3 < nisa.nc_version.gen4
    assert nisa.nc_version.gen3 >= 3
    assert f"{nisa.nc_version.gen3}" == str(nisa.nc_version.gen3) == "nc_version.gen3"


def test_the_axes_of_num_programs_may_be_a_tuple() -> None:
    @nki.jit
    def kernel() -> int:
        return nl.num_programs(axes=(0,))

    assert kernel[2]() == 2


def pick(x: Any, targets_hbm: Any, explains: bool, limit: int = 0) -> Any:
    """A kernel: element (p, targets[p]) of x [P, V] by a gather from x, flat."""
    rows, columns = x.shape
    targets, index = load(targets_hbm), nl.ndarray((rows, 1), nl.int32)
    nisa.iota(index, [[0, 1]], channel_multiplier=columns)
    nisa.tensor_tensor(index, index, targets, nl.add)
    if explains:
        explain_index(index, "target", targets, first_row=7, row_step=2, limit=limit or columns)
    result = nl.ndarray((rows, 1), x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, x.reshape((rows * columns, 1)).vector_select(0, index))
    return result


X = np.arange(12, dtype=np.float32).reshape(3, 4)
SAYS = (
    "operand 'src': {}index {} in partition {} of tensor [3, 1] int32 in sbuf is out of range [0, 12) of tensor 'x' "
    "[12, 1] float32 in private_hbm"
)


@pytest.mark.parametrize(
    ("targets", "index", "partition", "explanation"),
    [
        ([0, 1, 40], 48, 2, "row 11 has target 40, outside [0, 4): "),
        ([-3, 1, 0], -3, 0, "row 7 has target -3, outside [0, 4): "),
    ],
)
def test_the_error_says_what_the_index_stands_for(
    targets: list[int], index: int, partition: int, explanation: str
) -> None:
    column = np.array(targets, np.int32).reshape(-1, 1)
    for explains in (True, False):
        message = refused(OutOfRangeError, lambda explains=explains: run(pick, X, column, explains))  # type: ignore[misc]
        text = SAYS.format(explanation if explains else "", index, partition)
        assert without_place(message, "nisa.dma_copy") == text


@pytest.mark.parametrize("limit", [1, 3, 40])
def test_the_error_tells_the_limit_that_the_kernel_gave(limit: int) -> None:
    """It is that of the values; the index has its own."""
    column = np.array([[0], [40], [0]], np.int32)
    message = refused(OutOfRangeError, lambda: run(pick, X, column, True, limit))
    assert without_place(message, "nisa.dma_copy") == SAYS.format(f"row 9 has target 40, outside [0, {limit}): ", 44, 1)


def test_an_explanation_needs_a_limit() -> None:
    expected = "explain_index() missing 1 required positional argument: 'limit'"
    none = in_hbm(np.zeros((1, 1), np.int32))
    assert refused(TypeError, lambda: explain_index(none, "target", none, 0, 1)) == expected  # type: ignore[call-arg]


def test_an_explained_index_in_range_changes_nothing() -> None:
    column = np.array([[3], [0], [1]], np.int32)
    np.testing.assert_array_equal(run(pick, X, column, True), [[3], [4], [9]])


def test_kernels_get_it_from_the_module_that_chooses_the_backend() -> None:
    assert nkilib.nki.explain_index is explain_index


def test_a_value_in_range_is_not_called_outside() -> None:
    """The index may be wrong for another reason, here for an error of the kernel."""

    def kernel(x: Any, targets_hbm: Any) -> Any:
        targets, index = load(targets_hbm), nl.full((3, 1), 99, nl.int32)
        explain_index(index, "target", targets, first_row=0, row_step=1, limit=4)
        result = nl.ndarray((3, 1), x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, x.reshape((12, 1)).vector_select(0, index))
        return result

    message = refused(OutOfRangeError, lambda: run(kernel, X, np.full((3, 1), 2, np.int32)))
    assert without_place(message, "nisa.dma_copy") == SAYS.format("row 0 has target 2: ", 99, 0)


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
