# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The names by which the messages of checks refer to the calling function."""

from __future__ import annotations

from typing import NamedTuple

from torch.nn import functional


class Caller(NamedTuple):
    """The function that checks its arguments, as its messages name it.

    Attributes:
        function: the name of the function.
        input: the name of its first argument.
        noun: a word for the content of the first argument, such as ``"logits"``.
        instead: the recommendation of messages where this one cannot be used, as the object of "use":
            :func:`counterpart` of the name, or another function of PyTorch.
    """

    function: str
    input: str
    noun: str
    instead: str

    def __str__(self) -> str:
        return self.function


def counterpart(name: str) -> str:
    """Return PyTorch's function of that name, or, if there is none, a phrase for the formula in operations of PyTorch.

    Both can follow "use" in a message.
    """
    if hasattr(functional, name):
        return f"torch.nn.functional.{name}"
    return f"the formula of {name} in operations of PyTorch, which has no function of that name"
