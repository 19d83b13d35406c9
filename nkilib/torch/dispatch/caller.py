# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The names by which the messages of checks refer to the calling function."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    """The function that checks its arguments, as its messages name it.

    Attributes:
        function: the name of the function.
        input: the name of its first argument.
        noun: a noun for the first argument, in words.
        instead: the PyTorch function that messages recommend where this one cannot be used.
    """

    function: str
    input: str
    noun: str
    instead: str

    def __str__(self) -> str:
        return self.function
