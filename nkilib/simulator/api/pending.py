# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Stand-ins for functions that NKI documents and the simulator does not implement yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def pending(name: str) -> Callable[..., NoReturn]:
    """Return a stand-in for the documented function ``name``; a call raises NotImplementedError with that name."""

    def not_implemented(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not implemented in the simulator yet")

    not_implemented.__name__ = not_implemented.__qualname__ = name.rpartition(".")[2]
    return not_implemented
