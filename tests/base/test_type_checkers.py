# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch as type checkers see it: in a checkout, installed, and beside AWS's package of the same name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.base.test_installation import Machine, _new_machine, wheels  # noqa: F401
from tests.fresh_python import CHECKOUT, with_checkout

# Each line, and what mypy says of it; nothing is said of a line that is right.
LINES = {
    "reveal_type(cross_entropy_forward[2](logits, targets))": 'Revealed type is "tuple[Any, Any]"',
    "reveal_type(extended_cross_entropy_forward(logits, targets))": 'Revealed type is "tuple[Any, ...]"',
    "reveal_type(softmax_forward[2](logits, 1))": 'Revealed type is "Any"',
    "reveal_type(profile(softmax_forward[2], spec((4, 8), 'float32'), 1))": 'profile.Profile"',
    "loss, lse = cross_entropy_forward[2](logits, targets, chunk_size=4, dtype=nl.float32)": "",
    "cross_entropy_forward[2](logits)": 'Missing positional argument "targets_hbm"',
    "cross_entropy_forward[2](logits, targets, chunk_sise=4)": 'Unexpected keyword argument "chunk_sise"',
    "cross_entropy_forward[2](logits, targets, chunk_size='4')": 'has incompatible type "str"; expected "int"',
    "cross_entropy_forward['2'](logits, targets)": 'Invalid index type "str"',
    "one, two, three = cross_entropy_forward(logits, targets)": "Need more than 2 values to unpack",
}
IMPORTS = """import numpy as np
from nkilib.experimental.loss import cross_entropy_forward, extended_cross_entropy_forward
from nkilib.experimental.softmax import softmax_forward
from nkilib.nki import nl
from nkilib.simulator import profile, spec
logits, targets = np.zeros((4, 8), np.float32), np.zeros(4, np.int32)
"""
ERRORS = [
    IMPORTS.count("\n") + row
    for row, (line, item) in enumerate(LINES.items(), 1)
    if item and not line.startswith("reveal")
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program of a user."""
    (tmp_path / "user").mkdir()
    path = tmp_path / "user" / "script.py"
    path.write_text(IMPORTS + "\n".join(LINES) + "\n", encoding="utf-8")
    return path


def checked(command: list[str | Path], script: Path, **variables: str) -> list[str]:
    """Return a type checker's messages about the script, one a line."""
    environment = with_checkout("PYTHONPATH", "MYPYPATH", **variables) | {"PYTHONPATH": ""}
    done = subprocess.run(
        [*command, script], cwd=script.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert "script.py" in done.stdout, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "script.py:" in line]


def machine_with(root: Path, wheels: dict[str, Path], place: str) -> Machine:  # noqa: F811
    """An environment with what a place names: ours alone, or beside theirs with and without types."""
    machine = _new_machine(root / "environment")
    machine.unpack(*([wheels["ours"]] if place == "installed" else [wheels["theirs"], wheels["ours"]]))
    if place == "beside theirs with types":
        (machine.site / "nkilib" / "py.typed").touch()
    return machine


PLACES = ["checkout", "installed", "beside theirs", "beside theirs with types"]


@pytest.mark.parametrize("place", PLACES)
def test_mypy_sees_arguments_and_results_of_a_launch(
    place: str,
    wheels: dict[str, Path],  # noqa: F811
    script: Path,
    tmp_path: Path,
) -> None:
    in_checkout = place == "checkout"
    python = sys.executable if in_checkout else machine_with(tmp_path, wheels, place).python
    command = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "--follow-imports", "silent"]
    path = {"MYPYPATH": str(CHECKOUT)} if in_checkout else {}
    text = checked([*command, "--python-executable", python], script, **path)
    for row, (line, expected) in enumerate(LINES.items(), IMPORTS.count("\n") + 1):
        about = [message for message in text if f"script.py:{row}: " in message and '" defined in ' not in message]
        assert len(about) == bool(expected), (line, about)
        assert not expected or expected in about[0]
    assert len([message for message in text if ": error: " in message]) == len(ERRORS)


@pytest.mark.skipif(shutil.which("pyright") is None, reason="needs pyright")
@pytest.mark.parametrize("place", PLACES)
def test_pyright_sees_arguments_and_results_of_a_launch(
    place: str,
    wheels: dict[str, Path],  # noqa: F811
    script: Path,
    tmp_path: Path,
) -> None:
    in_checkout = place == "checkout"
    python = sys.executable if in_checkout else machine_with(tmp_path, wheels, place).python
    if in_checkout:
        (script.parent / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{CHECKOUT}"]}}')
    message = checked(["pyright", "--pythonpath", python], script)
    wrong = [int(line.split("script.py:")[1].partition(":")[0]) for line in message if " - error: " in line]
    assert wrong == ERRORS
    shown = [line.partition(' is "')[2].rstrip('"') for line in message if " - information: " in line]
    assert shown == ["tuple[Any, Any]", "tuple[Any, ...]", "Any", "Profile"]
