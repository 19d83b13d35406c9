# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sphinx extension: one API page for each public module, from the list of public names (reference/public_api.txt)."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_DIRECTIVES: Final = {
    "function": "autofunction",
    "kernel": "autofunction",
    "class": "autoclass",
    "exception": "autoexception",
    "constant": "autodata",
}
_OPTIONS: Final = {
    "class": ["   :members:"],
    "exception": ["   :members:"],
    "constant": ["   :no-value:"],
}
_NAMED_RESULT: Final = re.compile(r"    \w+(, \w+)*: ")
_NAMES_WITHOUT_END: Final = re.compile(r"    (\w+, )*\w+,$")
_BAR_OUTSIDE_LITERALS: Final = re.compile(r"(``.*?``|`[^`]*`)|(?<!\\)\|")


def public_modules(listing: str) -> dict[str, dict[str, str]]:
    """Read the list of public names.

    Args:
        listing: the text of ``public_api.txt``.

    Returns:
        The kind of each name (``"function"``, ``"class"``, ...), by module and name.
    """
    modules: dict[str, dict[str, str]] = {}
    for line in listing.splitlines():
        if line.startswith("nkilib"):
            names = modules.setdefault(line.strip(), {})
        elif entry := re.match(r"    (\w+): (\w+)", line):
            names[entry[1]] = entry[2]
    return modules


def page(module: str, names: dict[str, str], is_indexed: dict[str, bool]) -> str:
    """Write the page of a module in reStructuredText.

    Args:
        module: its name.
        names: the kind of each public name of the module.
        is_indexed: whether the index has the object of a name under this module; by default it has.

    Returns:
        The text of the page.
    """
    lines = [module, "=" * len(module), "", f".. automodule:: {module}", "   :no-members:", ""]
    for name, kind in names.items():
        if kind in _DIRECTIVES:
            lines += [f".. {_DIRECTIVES[kind]}:: {module}.{name}", *_OPTIONS.get(kind, [])]
            lines += [] if is_indexed.get(name, True) else ["   :no-index:"]
            lines += [""]
    others = [f"``{name}``" for name, kind in names.items() if kind not in _DIRECTIVES]
    if others:
        lines += [f"Modules and other names: {', '.join(others)}.", ""]
    return "\n".join(lines)


def escaped(line: str) -> str:
    """Escape the bars of magnitudes, which reStructuredText takes for substitutions.

    Args:
        line: a line of a docstring.

    Returns:
        The line with a backslash before each bar outside literals.
    """
    return _BAR_OUTSIDE_LITERALS.sub(lambda match: match[1] or r"\|", line)


def _write_pages(app: Sphinx) -> None:
    reference = Path(app.srcdir) / "reference"
    modules = public_modules((reference / "public_api.txt").read_text(encoding="utf-8"))
    folder = reference / "api"
    folder.mkdir(exist_ok=True)
    seen: set[int] = set()  # a class that two modules offer has one entry in the index
    for module, names in modules.items():
        objects = {name: getattr(importlib.import_module(module), name, None) for name in names}
        is_indexed = {name: id(value) not in seen for name, value in objects.items()}
        seen |= {id(value) for value in objects.values()}
        _write_if_new(folder / f"{module}.rst", page(module, names, is_indexed))
    contents = "\n".join(f"   {module}" for module in modules)
    head = "API of the public modules\n=========================\n\n.. toctree::\n   :maxdepth: 1\n\n"
    _write_if_new(folder / "index.rst", f"{head}{contents}\n")


def _write_if_new(path: Path, text: str) -> None:
    """Leave the file of an unchanged page alone, so that Sphinx does not build it again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def with_results(lines: list[str]) -> list[str]:
    """Rewrite the section of results, of which napoleon takes the words before the first colon for a type.

    Args:
        lines: a docstring.

    Returns:
        The docstring with a section "Results" that is listed like arguments, if the results have names, or else with a
        field ``:returns:``.
    """
    if "Returns:" not in lines[:-1]:
        return lines
    at = lines.index("Returns:")
    if _NAMED_RESULT.match(lines[at + 1]):
        return [*lines[:at], "Results:", *lines[at + 1 :]]
    return [*lines[:at], f":returns: {lines[at + 1].strip()}", *lines[at + 2 :]]


def with_joined_names(lines: list[str]) -> list[str]:
    """Join the names of arguments that share a description and take more than one line.

    Args:
        lines: a docstring.

    Returns:
        The docstring with such names on one line.
    """
    joined: list[str] = []
    for line in lines:
        if joined and _NAMES_WITHOUT_END.match(joined[-1]):
            joined[-1] = f"{joined[-1]} {line.strip()}"
        else:
            joined.append(line)
    return joined


def _mend(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = with_joined_names(with_results([escaped(line) for line in lines]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", _write_pages)
    app.connect("autodoc-process-docstring", _mend, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
