# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write the parts of pages that are made from data: ``python -m tools.write_tables``.

It writes the guarantees of the kernels into docs/reference/guarantees.md and guarantees_errors.md, and the registry of
losses into docs/reference/losses.md and the pages losses_*.md beside it. Modelled times of all losses take 1.5 to 3
minutes, in which nothing is printed; ``--but-times`` leaves them as they are.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from nkilib.cli import guarantees, losses
from nkilib.core.host.loss import Family

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"


def write(page: str, name: str, text: str) -> None:
    """Replace the text between the two markers ``name`` of a page in docs/reference by ``text``."""
    path = REFERENCE / f"{page}.md"
    whole = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    if len(pattern.findall(whole)) != 1:
        raise ValueError(f"docs/reference/{page}.md must have the markers of {name!r} once")
    path.write_text(pattern.sub(lambda result: f"{result[1]}\n{text}\n\n{result[2]}", whole), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--but-times", action="store_true", help="leave modelled times as they are")
    but_times = parser.parse_args().but_times
    write("guarantees", "promises", guarantees.promise_tables())
    write("guarantees_errors", "errors", guarantees.error_lists())
    write("losses", "losses", losses.overview())
    for family in Family:
        write(losses.page_of(family), family.value, losses.entries(family))
    if not but_times:
        write("losses_times", "times", losses.times())
