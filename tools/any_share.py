# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Measure which share of the expressions of the kernels is `Any` to the type checker, which does not check these.

``mypy --any-exprs-report DIRECTORY`` writes a table, a module a line: name, expressions that are Any, all
expressions, share that is known. ``python -m tools.any_share DIRECTORY`` fails where the kernels have too many.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Packages whose code is traced, and the share of their expressions that may be Any.
PACKAGES = ("nkilib.core", "nkilib.experimental")
ALLOWED = 0.08


def any_share(report: str) -> float:
    """Return the share of Any among the expressions of ``PACKAGES``, from the text of the report.

    Raises:
        ValueError: if the report has no line for one of them.
    """
    anys = expressions = 0
    missing = set(PACKAGES)
    for line in report.splitlines():
        words = line.split()
        package = next((package for package in PACKAGES if words and f"{words[0]}.".startswith(f"{package}.")), None)
        if package is not None:
            anys, expressions = anys + int(words[1]), expressions + int(words[2])
            missing.discard(package)
    if missing:
        raise ValueError(
            f"any_share: the report must have a line for each of {', '.join(PACKAGES)}; run mypy on nkilib"
        )
    return anys / expressions


def main(directory: str) -> int:
    """Print the share and the largest allowed share; return 1 if the share is too large, else 0."""
    share = any_share((Path(directory) / "any-exprs.txt").read_text())
    print(f"{share:.1%} of the expressions of {' and '.join(PACKAGES)} are Any; allowed are {ALLOWED:.0%}")
    return int(share > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
