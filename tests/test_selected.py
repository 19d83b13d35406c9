# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A fixture learns for which names the tests of a run ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selected import read_names, selected, write_names


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest) -> list[str]:
    return selected(request, "name")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["a", "b", pytest.param("swept", marks=pytest.mark.sweep)])
def test_every_name_that_is_asked_for_is_given_once(name: str, number: int, names: list[str]) -> None:
    assert names.count(name) == 1


@pytest.mark.parametrize("name", ["c"])
def test_a_name_is_not_given_to_a_fixture_that_its_test_does_not_use(name: str, request: pytest.FixtureRequest) -> None:
    assert name not in request.getfixturevalue("names")


def test_a_deselected_test_asks_for_nothing(request: pytest.FixtureRequest, names: list[str]) -> None:
    is_selected = any("swept" in item.name for item in request.session.items)
    assert ("swept" in names) == is_selected


def test_names_are_read_as_they_were_written(tmp_path: Path) -> None:
    names = ["a step, bfloat16", "of 2^-24"]
    assert read_names(str(write_names(tmp_path, names))) == names
