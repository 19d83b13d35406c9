# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The page on the examples: every example is on it, with commands that it takes."""

from __future__ import annotations

import importlib
import re
import shlex

import pytest

from tests.fresh_python import CHECKOUT

PAGE = (CHECKOUT / "examples" / "README.md").read_text(encoding="utf-8")
# `python -m examples.demo --quick`, `torchrun --nproc_per_node 2 -m examples.vocab_parallel`
COMMANDS = [match.group(0) for match in re.finditer(r"(?:python|torchrun) [^\n`|]*?-m examples\.[^\n`|]*", PAGE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_takes_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    module = words.index("-m") + 1
    example = importlib.import_module(words[module])
    # It leaves with an error for what it does not take.
    assert example.parse_arguments(words[module + 1 :]) is not None


def test_every_example_is_on_the_page() -> None:
    examples = {path.stem for path in (CHECKOUT / "examples").glob("[!_]*.py")}
    assert examples == {re.search(r"examples\.(\w+)", command).group(1) for command in COMMANDS}  # type: ignore[union-attr]
