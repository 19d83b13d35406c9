# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.language.programs``: the launch grid and the generation."""

from __future__ import annotations

from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError
from tests.simulator.frame import refused, run, without_line


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
