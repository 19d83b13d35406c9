# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sphinx extension: API pages of the public modules, from the list of public names (reference/public_api.txt).

A module that ``api_families`` of conf.py lists has an overview and a page for each family: the names whose objects are
defined in the same part of the packages that it lists. Any other module has one page. Modules, families and names come
in the order of their use: those first that most pages and examples name in code. An object that two modules offer is
described once, and linked from the other module; so is a function that is also a kernel, with the same arguments.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docstrings import escaped, first_sentence

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_DIRECTIVES: Final = {
    "function": "autofunction",
    "kernel": "autofunction",
    "class": "autoclass",
    "exception": "autoexception",
    "constant": "autodata",
    "enum": "autoclass",
}
_OPTIONS: Final = {
    "class": ["   :members:"],
    "exception": ["   :members:"],
    "constant": ["   :no-value:"],
    "enum": ["   :members:", "   :undoc-members:"],
}
_ROLES: Final = {
    "function": "func",
    "kernel": "func",
    "class": "class",
    "exception": "exc",
    "constant": "data",
    "enum": "class",
}
_FUNCTIONS: Final = ("function", "kernel")
_NAMES_OF_TITLE: Final = 4
_ROWS_OF_TABLE: Final = 8
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"`(?:[\w.]+\.)?(\w+)(?:\([^`]*\))?`")


@dataclass(frozen=True)
class Entry:
    """A public name.

    Attributes:
        module: the public module that offers it.
        name: the name.
        kind: ``"function"``, ``"class"`` and so on, as in the list of public names.
        home: the module that defines its object; the public module if that cannot be told.
        line: the line there on which a function begins; beyond all lines for what is no function.
        summary: one line of reStructuredText.
        described: the module whose page describes it.
    """

    module: str
    name: str
    kind: str
    home: str
    line: int
    summary: str
    described: str

    @property
    def link(self) -> str:
        """A role of Sphinx that links to its description and shows its name."""
        target = f"{self.described}.{self.name}"
        return f":{_ROLES[self.kind]}:`{self.name} <{target}>`" if self.kind in _ROLES else f"``{self.name}``"


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


def uses(texts: Iterable[str]) -> Counter[str]:
    """Count the pages that name something in code.

    Args:
        texts: pages in Markdown, and programs as a page of one block.

    Returns:
        By name, and by dotted path of a module, in how many of the texts it is in backticks or in a Python block.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        code = re.sub(r"#.*$", "", "\n".join(_BLOCK.findall(text)), flags=re.MULTILINE)
        paths = {".".join(path[:size]) for path in _paths_of(text) for size in range(2, len(path) + 1)}
        counts.update({*re.findall(r"\w+", code), *_INLINE.findall(text), *paths})
    return counts


def _paths_of(text: str) -> list[list[str]]:
    return [path.split(".") for path in re.findall(r"\bnkilib(?:\.\w+)+", text)]


def family(home: str, module: str, packages: Sequence[str]) -> str:
    """Name the family of an object.

    Args:
        home: the module that defines it.
        module: the public module that offers it.
        packages: the packages whose parts are families.

    Returns:
        The part of the smallest of these packages that ``home`` is in, as a dotted path, or ``home`` if it is in none
        of them; empty for an object that the public module itself or one of the packages defines.
    """
    if home == module or home in packages:
        return ""
    package = max((name for name in packages if home.startswith(f"{name}.")), key=len, default="")
    return f"{package}.{home.removeprefix(f'{package}.').split('.')[0]}" if package else home


def in_order(entries: Iterable[Entry], counts: Mapping[str, int]) -> list[Entry]:
    """Sort names by their use, and those of equal use as the code has them, functions before all others."""
    return sorted(entries, key=lambda entry: (-counts.get(entry.name, 0), entry.home, entry.line, entry.name))


def families(entries: Iterable[Entry], packages: Sequence[str], counts: Mapping[str, int]) -> dict[str, list[Entry]]:
    """Sort the names of a module into families.

    Args:
        entries: the names.
        packages: the packages whose parts are families.
        counts: how many pages name something.

    Returns:
        The names of each family in the order of their use; the families in the order of the use of their first names.
    """
    result: dict[str, list[Entry]] = {}
    for entry in in_order(entries, counts):
        result.setdefault(family(entry.home, entry.module, packages), []).append(entry)
    return result


def title(entries: Sequence[Entry]) -> str:
    """Name a family by its most used name and the others of that kind: as many as a heading can take."""
    kinds = _FUNCTIONS if entries[0].kind in _FUNCTIONS else (entries[0].kind,)
    names = [entry.name for entry in entries if entry.kind in kinds]
    if len(names) <= _NAMES_OF_TITLE:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMES_OF_TITLE - 1])} and {len(names) - _NAMES_OF_TITLE + 1} more"


def described(entries: Iterable[Entry]) -> list[str]:
    """Return the lines that describe each name with its docstring, and link those that another page describes."""
    lines: list[str] = []
    others: list[Entry] = []
    for entry in entries:
        if entry.kind not in _DIRECTIVES or entry.described != entry.module:
            others.append(entry)
            continue
        lines += [f".. {_DIRECTIVES[entry.kind]}:: {entry.module}.{entry.name}", *_OPTIONS.get(entry.kind, []), ""]
    linked = [entry for entry in others if entry.described != entry.module and entry.kind in _ROLES]
    named = [f"``{entry.name}``" for entry in others if entry not in linked]
    if linked:
        places = sorted({entry.described for entry in linked})
        pages = ", ".join(f":doc:`{place} </reference/api/{place}>`" for place in places)
        is_called = any(entry.kind in _FUNCTIONS for entry in linked)
        same = ", with the same arguments and results" if is_called else ""
        lines += [f"Described in {pages}{same}:", "", *table(linked)]
    if named:
        lines += [f"Modules and other names: {', '.join(named)}.", ""]
    return lines


def table(entries: Iterable[Entry]) -> list[str]:
    """Return the lines of a table of names, each with its link and the first sentence of its docstring."""
    lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for entry in entries:
        lines += [f"   * - {entry.link}", f"     - {entry.summary}"]
    return [*lines, ""]


def names_of(entries: Sequence[Entry]) -> list[str]:
    """Return the lines that list the names of a family: a table, or for many names their links alone."""
    if len(entries) <= _ROWS_OF_TABLE:
        return table(entries)
    return [", ".join(f"``{e.name}``" if e.kind == "constant" else e.link for e in entries), ""]


def page(module: str, entries: Iterable[Entry]) -> str:
    """Write the page of a module without families in reStructuredText."""
    return "\n".join([*_head(module), f".. automodule:: {module}", "   :no-members:", "", *described(entries)])


def page_of_family(module: str, entries: Sequence[Entry]) -> str:
    """Write the page of a family in reStructuredText."""
    head = _head(f"{module}: {title(entries)}")
    return "\n".join([*head, f".. currentmodule:: {module}", "", *described(entries)])


def place(part: str, module: str, packages: Sequence[str]) -> str:
    """Return the page of a family below the folder of API pages; ``part`` is what ``family`` returns."""
    return f"{module}/{part.removeprefix(f'{packages[0]}.').removeprefix('nkilib.')}"


def overview(module: str, text: str, groups: Mapping[str, Sequence[Entry]], places: Mapping[str, str]) -> str:
    """Write the page of a module with families.

    Args:
        module: the module.
        text: its docstring.
        groups: the names of each family; those without one are under an empty name.
        places: the page of each family.

    Returns:
        The text: for each family a link to its page and its names, and the description of what has no family. The map
        of the modules in a package is for those who read its code, and is left out.
    """
    paragraphs = [escaped(part) for part in text.split("\n\n") if not part.startswith("- ")]
    pages = [f"   {title(entries)} <{places[part]}>" for part, entries in groups.items() if part]
    lines = [*_head(module), f".. py:module:: {module}", "", "\n\n".join(paragraphs), ""]
    lines += [".. toctree::", "   :hidden:", "", *pages, ""]
    for part, entries in groups.items():
        if part:
            heading = f":doc:`{title(entries)} <{places[part]}>`"
            lines += [heading, "-" * len(heading), "", *names_of(entries)]
    return "\n".join([*lines, *_rest(groups.get("", []))])


def _rest(entries: Sequence[Entry]) -> list[str]:
    return ["Other names", "-----------", "", *described(entries)] if entries else []


def _head(text: str) -> list[str]:
    return [text, "=" * len(text), ""]


def _entries(module: str, names: Mapping[str, str], seen: dict[int, str]) -> list[Entry]:
    """Look the objects of a module up.

    Args:
        module: the public module.
        names: the kind of each of its names.
        seen: by the identity of an object, the module that describes it; gets the new ones.
    """
    offered = importlib.import_module(module)
    result = []
    for name, kind in names.items():
        value = inspect.unwrap(getattr(offered, name, offered))
        home = getattr(value, "__module__", None) or type(value).__module__
        if not home.startswith("nkilib."):
            home = module
        text = "" if kind == "constant" else inspect.getdoc(value) or ""
        line = value.__code__.co_firstlineno if inspect.isfunction(value) else sys.maxsize
        entry = Entry(module, name, kind, home, line, first_sentence(text), module)
        # Equal numbers and texts are one object that stands for different things.
        if kind != "constant" or home != module:
            entry = replace(entry, described=seen.setdefault(id(value), module))
        result.append(entry)
    return result


def _write_pages(app: Sphinx) -> None:
    docs = Path(app.srcdir)
    modules = public_modules((docs / "reference" / "public_api.txt").read_text(encoding="utf-8"))
    counts = uses(_texts(docs))
    folder = docs / "reference" / "api"
    seen: dict[int, str] = {}
    pages: dict[Path, str] = {}
    summaries: dict[str, str] = {}
    for module, names in modules.items():
        entries = _entries(module, names, seen)
        packages = app.config.api_families.get(module)
        summaries[module] = _summary(module)
        if packages is None:
            pages[folder / f"{module}.rst"] = page(module, in_order(entries, counts))
            continue
        groups = families(entries, packages, counts)
        places = {part: place(part, module, packages) for part in groups if part}
        pages[folder / f"{module}.rst"] = overview(
            module, inspect.getdoc(importlib.import_module(module)) or "", groups, places
        )
        for part, where in places.items():
            pages[folder / f"{where}.rst"] = page_of_family(module, groups[part])
    pages[folder / "index.rst"] = index({name: summaries[name] for name in modules_in_order(modules, counts)})
    _write_new(folder, pages)


def _texts(docs: Path) -> list[str]:
    """The pages that readers come to, and the examples as pages of one block."""
    read = [docs.parent / "README.md", *docs.rglob("*.md")]
    texts = [path.read_text(encoding="utf-8") for path in sorted(read) if path.stem not in ("changelog", "public_api")]
    examples = sorted((docs.parent / "examples").glob("*.py"))
    return [*texts, *(f"```python\n{path.read_text(encoding='utf-8')}\n```" for path in examples)]


def _summary(module: str) -> str:
    return first_sentence(inspect.getdoc(importlib.import_module(module)) or "")


def modules_in_order(modules: Iterable[str], counts: Mapping[str, int]) -> list[str]:
    """Sort the modules by their use, those of one package together, and the package of all of them last."""

    def package(module: str) -> str:
        return ".".join(module.split(".")[:2])

    most: Counter[str] = Counter()
    names = list(modules)
    for name in names:
        most[package(name)] = max(most[package(name)], counts.get(name, 0))
    return sorted(names, key=lambda n: ("." not in n, -most[package(n)], package(n), -counts.get(n, 0)))


def index(summaries: Mapping[str, str]) -> str:
    """Write the page that lists the modules, each with the first sentence of its docstring."""
    lines = [
        *_head("API of the public modules"),
        ".. toctree::",
        "   :hidden:",
        "",
        *(f"   {m}" for m in summaries),
        "",
    ]
    lines += [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for module, summary in summaries.items():
        lines += [f"   * - :doc:`{module}`", f"     - {summary}"]
    return "\n".join([*lines, ""])


def _write_new(folder: Path, pages: Mapping[Path, str]) -> None:
    """Write the pages, leave those that have not changed alone, so that Sphinx does not build them again, and remove
    those of names that are gone, which no page would list.
    """
    for path in folder.rglob("*.rst"):
        if path not in pages:
            path.unlink(missing_ok=True)
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            whole = path.with_suffix(f".{os.getpid()}")  # for another build of the site at the same time
            whole.write_text(text, encoding="utf-8")
            whole.replace(path)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension and its option ``api_families``."""
    app.add_config_value("api_families", {}, "env", [dict])
    app.connect("builder-inited", _write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
