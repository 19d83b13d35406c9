# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m benchmarks``: the list of all commands, with what each of them measures."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def commands() -> dict[str, str]:
    """Return the first line of the docstring of each command, by the command's name after ``python -m``."""
    found = {}
    for path in sorted(_HERE.rglob("*.py")):
        parts = path.relative_to(_HERE.parent).with_suffix("").parts
        is_command = path.stem == "__main__" or not path.name.startswith("_")
        if not is_command or path == Path(__file__).resolve():
            continue
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__":' in text:
            name = ".".join(part for part in parts if part != "__main__")
            found[name] = _measured(ast.get_docstring(ast.parse(text)) or "")
    return found


def _measured(docstring: str) -> str:
    """The first line of a docstring without the command that it names."""
    line = re.sub(r"(: )?``python -m [^`]*``( or ``make \w+``)?(: )?", "", docstring.partition("\n")[0])
    return line[:1].upper() + line[1:].rstrip(".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list."""
    measured = commands()
    width = max(map(len, measured))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Each command measures something; python -m COMMAND --help lists its options.",
        epilog="\n".join(["commands:", *(f"  {name:<{width}}  {line}" for name, line in measured.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
