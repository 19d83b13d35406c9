# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write the tables that are made from data into the pages: ``python -m tools.write_tables``.

It writes the guarantees of the kernels into docs/reference/guarantees.md and the registry of losses into
docs/reference/losses.md. Modelled times of all losses take 1.5 to 3 minutes, in which nothing is printed;
``--but-times`` leaves them as they are.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from nkilib.cli import guarantees, losses

DOCS = Path(__file__).resolve().parent.parent / "docs"


def write(page: str, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page by ``text``; ``end`` is the first such marker after ``begin``."""
    path = DOCS / page
    whole = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {begin} -->\n).*?(<!-- {end} -->)", re.DOTALL)
    if len(pattern.findall(whole)) != 1:
        raise ValueError(f"docs/{page} must have the marker {begin!r} once")
    path.write_text(pattern.sub(lambda result: f"{result[1]}\n{text}\n\n{result[2]}", whole), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--but-times", action="store_true", help="leave modelled times as they are")
    tables = [losses.formulas, losses.edges, losses.term_errors, losses.guarantees]
    tables += [] if parser.parse_args().but_times else [losses.times]
    write("reference/guarantees.md", "guarantees: begin", "guarantees: end", guarantees.as_tables())
    for table in tables:
        write("reference/losses.md", f"losses: {table.__name__}", "losses: end", table())
