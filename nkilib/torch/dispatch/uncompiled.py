# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors and warnings that torch.compile must not silently leave out: :func:`refuse_inplace`, :func:`warn`.

Importing this module imports the compiler, so it is imported only while something is compiled.
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
    """Raise the error for ``inplace=True`` under torch.compile.

    With ``fullgraph=True`` the compiler itself raises an error with the same reason.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(f"{caller}: {_REASON}")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def warn(message: str) -> None:
    """Show a warning while a graph is compiled, once for the graph, because the graph itself cannot warn."""
    warnings.warn(message, UserWarning, stacklevel=2)
