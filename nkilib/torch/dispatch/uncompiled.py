# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What torch.compile must not leave out of its graph in silence, and run: it raises, or warns, when it is called.

Importing this imports the compiler, so it is imported where something is being compiled only.
"""

from __future__ import annotations

import warnings
from typing import Final, NoReturn

import torch

_REASON: Final = (
    "inplace=True is not supported by torch.compile, which would have to trace a backward that overwrites what the "
    "forward saved; leave inplace off, the compiler reuses memory itself"
)


@torch.compiler.disable(reason=_REASON)  # type: ignore[no-untyped-call, untyped-decorator]
def refuse_inplace(caller: str) -> NoReturn:
    """Raise. With ``fullgraph=True`` it is the compiler that raises, with the same reason.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(f"{caller}: {_REASON}")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def warn(message: str) -> None:
    """Warn once, while a graph is made, which cannot do it itself."""
    warnings.warn(message, UserWarning, stacklevel=2)
