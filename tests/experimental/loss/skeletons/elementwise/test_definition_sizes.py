# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""An elementwise loss stays small: what is not its own arithmetic belongs to the skeleton."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from pathlib import Path

import pytest

from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.elementwise.host.row import ElementwiseLoss

MOST_LINES = 40
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FILES = sorted(
    {Path(inspect.getfile(inspect.unwrap(loss.forward))) for loss in LOSSES if isinstance(loss, ElementwiseLoss)}
)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the line numbers of the docstrings of the module, its classes and functions."""
    result: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            result.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return result


def lines_of_classes(source: str) -> dict[str, int]:
    """Lines of code, by the name of the class, but of references: without docstrings, comments and empty ones."""
    tree = ast.parse(source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for token in tokens if token.type not in _LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    code -= docstring_lines(tree)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.endswith("Reference")]
    return {entry.name: len(code & set(range(entry.lineno, (entry.end_lineno or 0) + 1))) for entry in classes}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_loss_definition_is_forty_lines_at_most(path: Path) -> None:
    counted = lines_of_classes(path.read_text())
    assert counted and max(counted.values()) <= MOST_LINES


def test_lines_of_code_are_counted() -> None:
    source = 'class Two:\n    """Not\n    this."""\n\n    # nor this\n    x = (\n        1)\n'
    assert lines_of_classes(source) == {"Two": 3}
