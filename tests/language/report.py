"""What a walk over a kernel's source found."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType

from tests.language.rules import Rule


@dataclass(frozen=True)
class Refusal:
    """A place in the source that is not NKI."""

    file: str
    line: int
    function: str
    rule: Rule

    def __str__(self) -> str:
        rule = self.rule
        where = f"{self.file}:{self.line}: {self.function}"
        return f"{where}: {rule.construct} is not NKI: {rule.reason}. {rule.remedy}. ({rule.source})"


@dataclass
class Walk:
    """What a walk saw.

    Attributes:
        functions: every function read, by its qualified name; the kernel is the first.
        classes: every class of NKI reached, by its qualified name.
        refusals: what is not NKI.
    """

    functions: dict[str, FunctionType] = field(default_factory=dict)
    classes: dict[str, type] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def messages(self) -> list[str]:
        """The refusals as text, a line each."""
        return [str(refusal) for refusal in self.refusals]


def qualified_name(thing: FunctionType | type) -> str:
    """Module and name, with dots."""
    return f"{thing.__module__}.{thing.__qualname__}"
