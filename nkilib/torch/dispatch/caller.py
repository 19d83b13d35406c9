# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Who is named in the messages of checks."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    """The function that checks its arguments, as its messages name it.

    Attributes:
        function: its name.
        input: what it calls its first argument.
        noun: what that is, in words.
        instead: the function of PyTorch to name where it is of no use.
    """

    function: str
    input: str
    noun: str
    instead: str

    def __str__(self) -> str:
        return self.function
