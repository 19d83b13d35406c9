# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The report: one JSON file that is complete after every step, from which a run can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from nkilib.verify.verdict import Status

# The keys that must be equal to resume a run; the rest may change.
_SAME: Final = ("place", "nkilib", "target")


class ReportError(Exception):
    """Error for a file that is no report, or the report of another run; the message says what to do."""


@dataclass(frozen=True)
class Entry:
    """A step in the report.

    Attributes:
        kind, what: the kind and the description of the step.
        status, text, details: the status, text and details of its verdict.
        seconds: the time that the processes of the step took.
        log: the end of the output of these processes, if something went wrong.
    """

    kind: str
    what: str
    status: Status
    text: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    log: str = ""


@dataclass
class Report:
    """The report of a run.

    Attributes:
        path: the path of the file.
        header: the environment of the run.
        entries: the entries by name of the step, in the order in which they were run.
    """

    path: Path
    header: dict[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)

    def put(self, name: str, entry: Entry) -> None:
        """Add or replace the entry of a step, and write the file."""
        self.entries[name] = entry
        self.save()

    def save(self) -> None:
        """Write the file atomically."""
        steps = {name: {**asdict(entry), "status": entry.status.value} for name, entry in self.entries.items()}
        text = json.dumps({**self.header, "summary": self.counts(), "steps": steps}, indent=1, allow_nan=False)
        beside = self.path.with_name(f"{self.path.name}.new")
        beside.write_text(text + "\n", encoding="utf-8")
        os.replace(beside, self.path)

    def counts(self) -> dict[str, int]:
        """Return the number of steps by status."""
        statuses = [entry.status for entry in self.entries.values()]
        return {status.value: statuses.count(status) for status in Status if status in statuses}

    @property
    def has_differences(self) -> bool:
        """Whether a step has a status for which the command exits with 1."""
        return any(entry.status.is_difference for entry in self.entries.values())

    def without_bad_ends(self) -> None:
        """Remove the steps that gave no information, so that they run again."""
        self.entries = {name: entry for name, entry in self.entries.items() if not entry.status.has_ended_badly}

    @classmethod
    def resumed(cls, path: Path, header: Mapping[str, Any]) -> Report:
        """Return the report of a run to resume. A step that was running when the run ended counts as crashed.

        Raises:
            ReportError: if there is no report, it cannot be read, or it belongs to another run.
        """
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            entries = {
                name: Entry(**{**entry, "status": Status(entry["status"])}) for name, entry in read["steps"].items()
            }
            for name in _SAME:
                if read[name] != header[name]:
                    raise ReportError(
                        f"{path} is of another run: {name} was {read[name]!r} there and is {header[name]!r} here; name "
                        "another file with --report"
                    )
        except OSError as error:
            raise ReportError(f"cannot go on: {error}; run without --resume first") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReportError(f"{path} is no report of nkilib verify; name another file with --report") from error
        for name, entry in entries.items():
            if entry.status is Status.RUNNING:
                text = "the run ended while this step was running"
                entries[name] = Entry(entry.kind, entry.what, Status.CRASHED, text)
        return cls(path, dict(header), entries)
