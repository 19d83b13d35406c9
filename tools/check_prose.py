# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Check the English of docstrings and pages as far as a rule can: ``make lint`` runs it.

- The docstring of a public module, class, function or property is a sentence or a noun phrase, not a fragment: it does
  not start with a word that only continues something ("Of", "Those"), and has three words or more unless it names code,
  as in "Implement :meth:`Source.load`."
- The description in a line of ``Args:``, ``Attributes:``, ``Returns:`` or ``Raises:`` does not start with such a word.
- Docstrings and pages use the terms of docs/glossary.md, not the phrases that they replace.
- Prose in Markdown has at most 120 columns. Tables, code blocks and lines with an address are exempt.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
COLUMNS: Final = 120
FEWEST_WORDS: Final = 3
# The folders whose docstrings are checked.
FOLDERS: Final = ("nkilib", "tests", "benchmarks", "examples", "tools")

_STARTS = """
As At Beside Beyond By For From In Into Its Not Of On So Than That Their Those To What Which Whose With
"""
CONTINUATIONS: Final = frozenset(_STARTS.split())
ARGUMENT_CONTINUATIONS: Final = frozenset({"as", "of", "than", "that", "their", "those", "what", "which", "whose"})

# Phrase: what to write instead.
PHRASES: Final = {
    "loss of elements": "elementwise loss",
    "losses of elements": "elementwise losses",
    "loss of rows": "row-wise loss",
    "losses of rows": "row-wise losses",
    "held to": "checked against",
    "held against": "checked against, or compared with",
    "made anew": "recomputed",
    "done anew": "recomputed",
    "computed anew": "recomputed",
    "row numbers": "per-row scalars",
    "what comes upstream": "upstream gradient",
    "positions that count": "valid positions",
    "cores that meet": "cores that synchronise",
    "class that is taken out": "masked class",
    "classes that are taken out": "masked classes",
    "refused by name": "raises NotImplementedError naming it",
    "the same bits": "bitwise identical",
    "in turns": "round-robin, or alternately",
    "take turns": "alternate, or use slots round-robin",
}
_PHRASE: Final = re.compile(r"\b(" + "|".join(map(re.escape, PHRASES)) + r")\b", re.IGNORECASE)
_SECTION: Final = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
_ENTRY: Final = re.compile(r"(\w[\w, *.]*): (.*)$")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`")


class Finding(NamedTuple):
    """One place that breaks a rule.

    Attributes:
        path: the file.
        line: its line, from 1.
        text: the rule and what was found.
    """

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return (
            f"{self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path}:{self.line}: {self.text}"
        )


class Documented(NamedTuple):
    """A docstring and where it stands.

    Attributes:
        name: the dotted name in its module, ``""`` for the module.
        line: the line of its first word.
        text: the docstring without its indentation.
    """

    name: str
    line: int
    text: str

    @property
    def is_public(self) -> bool:
        """Whether no part of the name begins with an underscore."""
        return not any(part.startswith("_") for part in self.name.split("."))


def docstrings(source: str) -> Iterator[Documented]:
    """Yield the docstrings of a module.

    Args:
        source: its source code.

    Yields:
        Each docstring of the module and of its classes and functions.
    """

    def visit(node: ast.AST, name: str) -> Iterator[Documented]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield Documented(name, node.body[0].lineno, text)
        for child in ast.iter_child_nodes(node):
            inner = getattr(child, "name", "") if isinstance(child, ast.ClassDef | ast.FunctionDef) else ""
            yield from visit(child, ".".join(filter(None, (name, inner))))

    yield from visit(ast.parse(source), "")


def is_fragment(text: str) -> bool:
    """Tell whether a docstring is a fragment.

    Args:
        text: the docstring.

    Returns:
        Whether its first word continues something, or it has fewer than three words and names no code.
    """
    words = text.split()
    return words[0] in CONTINUATIONS or (len(words) < FEWEST_WORDS and "`" not in text)


def check_docstrings(path: Path) -> Iterator[Finding]:
    """Check the docstrings of a module.

    Args:
        path: the file of the module.

    Yields:
        A finding for each place that breaks a rule.
    """
    for documented in docstrings(path.read_text(encoding="utf-8")):
        first = documented.text.splitlines()[0]
        if documented.is_public and is_fragment(documented.text):
            advice = f"start with a verb or a noun, in at least {FEWEST_WORDS} words"
            yield Finding(path, documented.line, f"docstring is a fragment; {advice}: {first!r}")
        if documented.is_public:
            yield from _check_entries(path, documented)
        yield from _check_phrases(path, documented.line, documented.text)


def _check_entries(path: Path, documented: Documented) -> Iterator[Finding]:
    in_section = False
    for number, line in enumerate(documented.text.splitlines()):
        if _SECTION.match(line):
            in_section = True
        elif line and not line.startswith(" "):
            in_section = False
        entry = _ENTRY.match(line.strip()) if in_section and re.match(r" {4}\w", line) else None
        if entry and entry[2].split()[0] in ARGUMENT_CONTINUATIONS:
            text = f"description of {entry[1]!r} is a fragment; start with the thing: {entry[2]!r}"
            yield Finding(path, documented.line + number, text)


def _check_phrases(path: Path, first: int, text: str) -> Iterator[Finding]:
    text = _CODE.sub(lambda code: re.sub(r"[^\n]", "x", code[0]), text)
    for phrase in _PHRASE.finditer(re.sub(r"\s", " ", text)):
        line = first + text[: phrase.start()].count("\n")
        yield Finding(path, line, f"{phrase[0]!r}: write {PHRASES[phrase[0].lower()]!r}, a term of docs/glossary.md")


def check_page(path: Path) -> Iterator[Finding]:
    """Check a page.

    Args:
        path: the Markdown file.

    Yields:
        A finding for each place that breaks a rule.
    """
    prose = []
    in_block = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        is_fence = bool(_FENCE.match(line))
        in_block ^= is_fence
        if in_block or is_fence or line.lstrip().startswith("|"):
            prose.append("")
            continue
        prose.append(line)
        if len(line) > COLUMNS and "http" not in line:
            yield Finding(path, number, f"{len(line)} columns, at most {COLUMNS}; break the line")
    yield from _check_phrases(path, 1, "\n".join(prose))


def modules() -> list[Path]:
    """List the modules of the repository.

    Returns:
        The paths of all Python files in ``FOLDERS``.
    """
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def pages() -> list[Path]:
    """List the Markdown pages of the repository.

    Returns:
        The paths of the pages in the root, examples and docs.
    """
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "examples").glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def main() -> int:
    """Run the command.

    Returns:
        The exit code: 1 if something breaks a rule, otherwise 0.
    """
    findings = [finding for path in modules() for finding in check_docstrings(path)]
    findings += [finding for path in pages() for finding in check_page(path)]
    for finding in findings:
        print(finding)
    print(f"{len(findings)} places to mend" if findings else "docstrings and pages keep the rules of prose")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
