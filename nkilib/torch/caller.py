"""Who is named in the messages of checks."""

from __future__ import annotations

from typing import Final, NamedTuple


class Caller(NamedTuple):
    """The function that checks its arguments, as its messages name it.

    Attributes:
        function: its name.
        logits: what it calls the logits.
    """

    function: str = "cross_entropy"
    logits: str = "input"

    def __str__(self) -> str:
        return self.function


CROSS_ENTROPY: Final = Caller()
VOCAB_PARALLEL: Final = Caller("vocab_parallel_cross_entropy", "logits_shard")
