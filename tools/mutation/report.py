# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write the results of a run of mutants as a page."""

from __future__ import annotations

from collections import Counter

from .judging import Judged, Verdict

_REACHED = {None: "", True: "yes", False: "no"}


def report(head: str, judged: list[Judged]) -> str:
    """Return a page with the head, the counts, the survivors, the undecided mutants and the killed mutants."""
    counts = Counter(item.verdict for item in judged)
    lines = [head, "", "; ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict), ""]
    lines += ["| survivor | from | to | a test reaches it |", "|---|---|---|---|"]
    lines += [f"| {_change(item)} | {_REACHED[item.is_reached]} |" for item in _of(judged, Verdict.SURVIVED)]
    for verdict in (Verdict.LATE, Verdict.NOT_RUN):
        if counts[verdict]:
            lines += ["", f"| {verdict.value} | from | to |", "|---|---|---|"]
            lines += [f"| {_change(item)} |" for item in _of(judged, verdict)]
    lines += ["", "| killed | from | to | by |", "|---|---|---|---|"]
    lines += [f"| {_change(item)} | {_cell(item.test or 'an import')} |" for item in _of(judged, Verdict.KILLED)]
    return "\n".join(lines) + "\n"


def _of(judged: list[Judged], verdict: Verdict) -> list[Judged]:
    return sorted((item for item in judged if item.verdict is verdict), key=lambda item: item.mutant.place)


def _change(judged: Judged) -> str:
    change = judged.mutant.change
    return f"{judged.mutant.place} | {_cell(change.before)} | {_cell(change.after)}"


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"
