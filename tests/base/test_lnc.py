# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.base.lnc``: on how many cores a kernel is launched, from grid, variable and compiler, and disagreements."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from nkilib.base import lnc
from nkilib.base.lnc import CoresDisagreeError, launch_cores, library_launch

VARIABLE, FLAGS = "NEURON_LOGICAL_NC_CONFIG", "NEURON_CC_FLAGS"
SAME = "kernel and compiler must work with the same number (error NCC_EVRF066 otherwise)"


def set_to(monkeypatch: pytest.MonkeyPatch, variable: str, flags: str) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    monkeypatch.setenv(FLAGS, flags)


@pytest.mark.parametrize(
    ("grid", "variable", "flags", "cores"),
    [
        (None, "2", "", 2),
        (None, "1", "", 1),
        (None, "2", "--model-type=transformer --lnc=2", 2),
        (None, "", "--lnc=1", 1),  # the default of NKI, and the compiler was told the same
        (2, "", "", 2),
        (2, "2", "-O1 -lnc 2", 2),
        (1, "1", "--logical-nc-config 1", 1),
        (1, "", "--lnc=1", 1),
        (2, "", "--lnc=1 --lnc=2", 2),  # of two, the compiler takes the later one
    ],
)
def test_all_agree(grid: int | None, variable: str, flags: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_to(monkeypatch, variable, flags)
    assert launch_cores("kernel", grid) == cores


@pytest.mark.parametrize(
    ("grid", "variable", "flags", "said", "cure"),
    [
        (
            None,
            "",
            "",
            "the default of NKI 0.7 means 1 core, and the compiler's default means 2 cores",
            f"set {VARIABLE}=2",
        ),
        (1, "", "", "the grid [1] means 1 core, and the compiler's default means 2 cores", f"set {VARIABLE}=1"),
        (
            *(None, "2", "--lnc=1"),
            f"{VARIABLE}=2 means 2 cores, and --lnc=1 in {FLAGS} means 1 core",
            f"take --lnc=1 out of {FLAGS}",
        ),
        (
            *(2, "1", ""),
            f"the grid [2] means 2 cores, and {VARIABLE}=1 means 1 core",
            f"set {VARIABLE}=2, or leave the brackets out",
        ),
        (
            *(2, "1", "--lnc 1"),
            f"the grid [2] means 2 cores, and {VARIABLE}=1 means 1 core",
            f"set {VARIABLE}=2 and take --lnc=1 out of {FLAGS}, or leave the brackets out",
        ),
        (
            *(2, "", "-lnc 1"),
            f"the grid [2] means 2 cores, and -lnc=1 in {FLAGS} means 1 core",
            f"set {VARIABLE}=2 and take -lnc=1 out of {FLAGS}",
        ),
    ],
)
def test_a_disagreement_names_both_sides_and_the_cure(
    grid: int | None, variable: str, flags: str, said: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to(monkeypatch, variable, flags)
    with pytest.raises(CoresDisagreeError) as caught:
        launch_cores("kernel", grid)
    assert str(caught.value) == f"kernel{'' if grid is None else f'[{grid}]'}: {said}: {SAME}; {cure}"


@pytest.mark.parametrize(("grid", "variable", "flags"), [(None, "", ""), (1, "", ""), (2, "", ""), (1, "2", "--lnc=1")])
def test_the_cure_cures(grid: int | None, variable: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message's advice works when followed: the grid stays, the variable says the same, and the flag goes."""
    set_to(monkeypatch, variable, flags)
    try:
        launch_cores("kernel", grid)
    except CoresDisagreeError as error:
        wanted = 2 if grid is None else grid
        assert f"set {VARIABLE}={wanted}" in str(error)
        set_to(monkeypatch, str(wanted), "")
        assert launch_cores("kernel", grid) == wanted


def test_without_a_compiler_its_default_need_not_agree_and_stated_cores_must(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch_cores("kernel", None, compiler_default=None) == 1
    assert launch_cores("kernel", 1, compiler_default=None) == 1
    assert launch_cores("kernel", 2, compiler_default=None) == 2
    monkeypatch.setenv(FLAGS, "--lnc=2")
    with pytest.raises(CoresDisagreeError, match=f"set {VARIABLE}=2$"):
        launch_cores("kernel", None, compiler_default=None)


@pytest.mark.parametrize("value", ["0", "3", "two", " "])
def test_a_bad_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = f"must be 1 or 2, the physical cores of a logical NeuronCore, got {value!r}; "
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match=f"^{VARIABLE} {message}set it to what the Neuron runtime uses, or unset it$"):
        launch_cores("kernel", 2)
    set_to(monkeypatch, "2", f"--lnc={value!r}")
    with pytest.raises(ValueError, match=f"^--lnc in {FLAGS} {message}take it out, and set {VARIABLE}$"):
        launch_cores("kernel", 2)


def test_flags_that_no_shell_could_read_are_searched_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAGS, "--internal='x --lnc=2")
    choice = lnc.of_flags()
    assert choice is not None and choice.cores == 2


@pytest.mark.parametrize(
    ("variable", "flags", "launched"), [("", "", 2), ("1", "", None), ("2", "", None), ("", "--lnc=1", 1)]
)
def test_the_librarys_own_launches_agree_with_every_environment(
    variable: str, flags: str, launched: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without brackets where the variable is set, which NKI reads too; else with what the compiler works with."""

    class Kernel:
        grid: int | None = None

        def __getitem__(self, grid: int) -> Any:
            self.grid = grid
            return self

    set_to(monkeypatch, variable, flags)
    assert library_launch("kernel", Kernel()).grid == launched


def test_the_path_of_earlier_releases_gives_the_same() -> None:
    """``nkilib.lnc`` has every public name."""
    former = importlib.import_module("nkilib.lnc")
    assert former.launch_cores is lnc.launch_cores and former.CoresDisagreeError is lnc.CoresDisagreeError
