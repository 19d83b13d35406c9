# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Put the licence at the top of every Python file that lacks it: ``python -m tools.write_licences``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("nkilib", "tests", "benchmarks", "tools", "examples", "layout")
HEADER = "# SPDX-License-Identifier: Apache-2.0\n# Copyright The nkilib authors\n"
# What has to stand in the first lines of a file: the interpreter, and the encoding.
_FIRST = re.compile(r"(#!.*\n)?(#.*coding[:=].*\n)?")


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield every Python file in the folders of this repository that need the licence."""
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def has_header(text: str) -> bool:
    """Return whether a file begins with the licence."""
    return text.startswith(HEADER, _end_of_first(text))


def with_header(text: str) -> str:
    """Return the text of a file with the licence at its top, unchanged if it has it.

    A blank line separates the licence from the text after it.
    """
    if has_header(text):
        return text
    end = _end_of_first(text)
    rest = text[end:].removeprefix("\n")
    return f"{text[:end]}{HEADER}{f'{chr(10)}{rest}' if rest else ''}"


def _end_of_first(text: str) -> int:
    match = _FIRST.match(text)
    return match.end() if match else 0


def main() -> int:
    """Write the licence into the files that lack it, and print the number of these files."""
    written = 0
    for path in files():
        before = path.read_text(encoding="utf-8")
        after = with_header(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            written += 1
    print(f"{written} files got the licence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
