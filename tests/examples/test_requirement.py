# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Without rich the examples end with an error that says how to install it."""

from __future__ import annotations

from tests.fresh_python import run_fresh

WITHOUT_RICH = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "rich" else find_spec(name, *rest)
try:
    import examples
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_rich() -> None:
    assert run_fresh(WITHOUT_RICH).output == (
        "examples: the programs print with rich, which is not installed; pip install '.[cli]' in the checkout"
    )
