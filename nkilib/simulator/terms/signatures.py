"""What is wrong with a call that does not fit a signature, and what takes the place of parameters that NKI removed."""

from __future__ import annotations

import inspect
from typing import Any

# By function and parameter, or by parameter alone (nki/migration/index.rst).
_REMOVED = {
    "mask": "slice the tensors to what is inside, t[:rows, :columns]",
    "nisa.dma_copy dst_rmw_op": "use nisa.dma_compute",
    "nisa.dma_copy unique_indices": "use nisa.dma_compute",
    "nisa.register_move imm": "pass src",
    "nisa.sendrecv use_gpsimd_dma": "pass dma_engine=nisa.dma_engine.gpsimd_dma",
}


def call_error(function: str, signature: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> TypeError | None:
    """The error, with the name of the function, for a call that does not fit ``signature``; None for one that does."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return TypeError(f"{function}: {error}{_remedy(function, kwargs)}")
    return None


def _remedy(function: str, kwargs: dict[str, Any]) -> str:
    for name in kwargs:
        instead = _REMOVED.get(f"{function} {name}") or _REMOVED.get(name)
        if instead is not None:
            return f"; {name!r} was removed from NKI: {instead}"
    return ""
