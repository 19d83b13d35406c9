# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Names of NKI that exist here but are not implemented yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def pending(name: str) -> Callable[..., NoReturn]:
    """Return a function that raises NotImplementedError with ``name``, the documented name that it replaces."""

    def not_implemented(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not implemented in the simulator yet")

    not_implemented.__name__ = not_implemented.__qualname__ = name.rpartition(".")[2]
    return not_implemented
