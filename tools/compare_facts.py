# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Compare the facts of documentation pages before and after they are rewritten.

A rewrite should change sentences only. This script lists the numbers, names in code font, code blocks and links of the
pages of a git revision that the pages of the working tree no longer have, and those that they have gained:

    python -m tools.compare_facts --revision HEAD~1
    python -m tools.compare_facts --revision HEAD~1 --before docs/softmax.md --after docs/reference/softmax.md

Without ``--before`` and ``--after`` it compares all pages of README, CHANGELOG, CONTRIBUTING and docs/. A number counts
once for each set of pages, because a rewrite may remove a repetition.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs")

BLOCK = re.compile(r"^```[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|<(https?://[^>\s]+)>|(?<![(<])(https?://[^\s)>\]`]+)")
NAME = re.compile(r"`([^`\n]+)`")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?(?![\w])", re.IGNORECASE)


@dataclass
class Facts:
    """The facts that a rewrite must keep, a set for each sort.

    Attributes:
        numbers: numbers in prose and tables, with sign, exponent and percent sign, without thousands separators.
        names: text in code font.
        blocks: fenced code blocks, with their fences and without trailing blanks.
        links: addresses, and targets of relative links without their folders and anchors.
    """

    numbers: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    blocks: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)

    def add(self, page: str) -> None:
        """Add the facts of the Markdown text ``page``."""
        self.blocks |= {"\n".join(line.rstrip() for line in block.splitlines()) for block in BLOCK.findall(page)}
        prose = BLOCK.sub("", page)
        self.links |= {_link(next(filter(None, match))) for match in LINK.findall(prose)}
        prose = LINK.sub("](", prose)
        self.names |= {" ".join(name.split()) for name in NAME.findall(prose)}
        self.numbers |= {number.replace(",", "") for number in NUMBER.findall(prose)}


def _link(target: str) -> str:
    if target.startswith(("http://", "https://")):
        return target.rstrip(".,;")
    return target.removeprefix("old:").split("#")[0].rsplit("/", 1)[-1] or "(this page)"


def facts(pages: Iterable[str]) -> Facts:
    """Collect the facts of several Markdown texts.

    Args:
        pages: the texts.

    Returns:
        The facts of all texts together.
    """
    collected = Facts()
    for page in pages:
        collected.add(page)
    return collected


def differences(before: Facts, after: Facts) -> list[str]:
    """List the facts that only one side has.

    Args:
        before: facts of the pages before the rewrite.
        after: facts of the pages after it.

    Returns:
        One line for each fact: ``lost`` or ``new``, its sort, and the fact (of a code block: its first lines).
    """
    lines = []
    for sort in ("numbers", "names", "blocks", "links"):
        old, new = getattr(before, sort), getattr(after, sort)
        for word, only in (("lost", old - new), ("new", new - old)):
            lines += [f"{word:5}{sort:8} {' / '.join(fact.splitlines()[:4])}" for fact in sorted(only)]
    return lines


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _pages_before(revision: str, names: list[str]) -> list[str]:
    listed = _git("ls-tree", "-r", "--name-only", revision, "--", *names).split()
    missing = [name for name in names if not any(path == name or path.startswith(f"{name}/") for path in listed)]
    if missing:
        raise SystemExit(f"compare_facts: {', '.join(missing)} is not in {revision}; name pages of that revision")
    return [_git("show", f"{revision}:{path}") for path in listed if path.endswith(".md")]


def _pages_after(names: list[str]) -> list[str]:
    paths: list[Path] = []
    for name in names:
        path = ROOT / name
        if not path.exists():
            raise SystemExit(f"compare_facts: {name} does not exist; name pages of the working tree")
        paths += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return [path.read_text(encoding="utf-8") for path in paths]


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the arguments; None means those of the command line.

    Returns:
        The exit code: 0 if both sides have the same facts, otherwise 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.compare_facts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--revision", required=True, help="git revision that has the pages before the rewrite")
    parser.add_argument("--before", nargs="+", default=list(PAGES), help="pages or folders of that revision")
    parser.add_argument("--after", nargs="+", default=list(PAGES), help="pages or folders of the working tree")
    options = parser.parse_args(arguments)
    lines = differences(facts(_pages_before(options.revision, options.before)), facts(_pages_after(options.after)))
    print("\n".join(lines) if lines else "the same facts")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
