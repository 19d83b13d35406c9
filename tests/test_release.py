# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A release: wheel and sdist are built reproducibly, and hold what they should and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from email.policy import compat32
from pathlib import Path

import pytest

from nkilib import __version__
from tests.fresh_python import CHECKOUT, with_checkout

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WHEEL, SDIST = f"nkilib-{__version__}-py3-none-any.whl", f"nkilib-{__version__}.tar.gz"


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders with a wheel and an sdist each, built one after the other."""
    folders = [tmp_path_factory.mktemp("build") for _ in range(2)]
    for folder in folders:
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
        done = subprocess.run(command, cwd=CHECKOUT, env=with_checkout(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("name", [WHEEL, SDIST])
def test_two_builds_are_bitwise_identical(name: str, builds: list[Path]) -> None:
    first, second = ((folder / name).read_bytes() for folder in builds)
    assert first == second and len(first) > 100_000


def test_the_wheel_has_the_package_its_path_files_and_the_licence_and_no_test(builds: list[Path]) -> None:
    with zipfile.ZipFile(builds[0] / WHEEL) as wheel:
        names = wheel.namelist()
    outside = {name for name in names if not name.startswith("nkilib-packages/nkilib/")}
    info = f"nkilib-{__version__}.dist-info"
    metadata = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert outside == {"_nkilib_first.py", "nkilib-packages.pth"} | metadata
    assert [name for name in names if re.search(r"(^|/)(tests?|conftest|test_\w+)(/|\.py$)", name)] == []
    assert "nkilib-packages/nkilib/py.typed" in names
    shipped = {name.removeprefix("nkilib-packages/") for name in names if name.startswith("nkilib-packages/")}
    sources = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "nkilib").rglob("*.py")}
    assert sources <= shipped


def test_every_shipped_source_names_its_licence(builds: list[Path]) -> None:
    with zipfile.ZipFile(builds[0] / WHEEL) as wheel:
        heads = {name: wheel.read(name)[:200].decode() for name in wheel.namelist() if name.endswith(".py")}
    assert [name for name, head in heads.items() if "SPDX-License-Identifier: Apache-2.0" not in head] == []


def test_the_metadata_are_complete(builds: list[Path]) -> None:
    with zipfile.ZipFile(builds[0] / WHEEL) as wheel:
        text = wheel.read(f"nkilib-{__version__}.dist-info/METADATA").decode()
    metadata = HeaderParser(policy=compat32).parsestr(text)
    for field in ("Summary", "Author", "License-Expression", "Keywords", "Requires-Python", "Description-Content-Type"):
        assert metadata[field], field
    assert metadata["Version"] == __version__
    assert str(metadata.get_payload()).startswith("# nkilib")


def test_the_sdist_has_what_builds_tests_and_documents(builds: list[Path]) -> None:
    with tarfile.open(builds[0] / SDIST) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        included = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    # Stray files of a checkout are not shipped; hatchling adds these two.
    assert {name.partition("/")[0] for name in names} == {*included, "PKG-INFO", ".gitignore"}
    expected = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt"}
    assert expected | {"docs/conf.py", "docs/index.md", "tests/conftest.py", "layout/nkilib-packages.pth"} <= names
