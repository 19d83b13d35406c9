# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The two instructions on ``NkiScalar``: load and store. Every engine's sequencer runs them, like those on registers.

Sources: pages of ``nki.isa.scalar_load`` and ``nki.isa.scalar_store`` (2.33).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ...isa.handle import NkiInstruction
from ...isa.operand import Operand, output
from ...machine.call import Call
from ...machine.core import Core
from ...machine.issue import instruction
from ...tensors.registers import VirtualRegister
from ...tensors.scalars import NkiScalar, check_scalar_type
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import COPYABLE
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...terms.regions import MemoryRegion
from ...terms.signatures import call_error
from ..dma.rows import pass_over_read, read, write

_REACH = frozenset(MemoryRegion) - {MemoryRegion.psum}


class _Loaded:
    """A holder in which :func:`scalar_load` leaves the scalar that it creates."""

    scalar: NkiScalar


def _returning_scalar(issued: Callable[[_Loaded, Any], NkiInstruction]) -> Callable[[NkiTensor], NkiScalar]:
    """Wrap the load so that it has its documented signature and returns the scalar."""
    signature = inspect.Signature([inspect.Parameter("src", inspect.Parameter.POSITIONAL_OR_KEYWORD)])

    @wraps(issued)
    def load(*args: Any, **kwargs: Any) -> NkiScalar:
        _check_call("nisa.scalar_load", signature, args, kwargs)
        loaded = _Loaded()
        issued(loaded, *args, **kwargs)
        return loaded.scalar

    load.__signature__ = signature  # type: ignore[attr-defined]
    return load


def _returning_nothing(issued: Callable[[Any, Any], NkiInstruction]) -> Callable[[NkiTensor, NkiScalar], None]:
    """Wrap the store so that it has its documented signature, without ``name=``, and returns no handle."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("dst", "value")]
    signature = inspect.Signature(parameters)

    @wraps(issued)
    def store(*args: Any, **kwargs: Any) -> None:
        _check_call("nisa.scalar_store", signature, args, kwargs)
        issued(*args, **kwargs)

    store.__signature__ = signature  # type: ignore[attr-defined]
    return store


def _check_call(name: str, signature: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> None:
    error = call_error(name, signature, args, kwargs)
    if error is not None:
        raise error


@_returning_scalar
@instruction(operands=(Operand("src", regions=_REACH, dtypes=COPYABLE),), on=(Engine.sync,), is_lane_bound=False)
def scalar_load(call: Call, dst: _Loaded, src: NkiTensor) -> None:
    """Return the only element of ``src``, a tensor of shape [1, 1] in SBUF or HBM, as an ``NkiScalar``.

    The type of ``src`` is int32 or int64.

    Raises:
        NkiValidationError: for another shape or type, or with the front end of NKI 0.6, which has no scalars.
    """
    _check_frontend(call.core)
    _check_element("src", src)
    if src.storage.is_abstract:
        pass_over_read(call.core, "src", src)
        dst.scalar = NkiScalar.holding(None, src.dtype, loaded_by=call.number, origin=src.storage.origin)
        return
    value = int(read(call.core, "src", src).item())
    dst.scalar = NkiScalar.holding(value, src.dtype, loaded_by=call.number)


@_returning_nothing
@instruction(operands=(output("dst", regions=_REACH, dtypes=COPYABLE),), on=(Engine.sync,), is_lane_bound=False)
def scalar_store(call: Call, dst: NkiTensor, value: NkiScalar) -> None:
    """Store ``value`` in the only element of ``dst``, of shape [1, 1] in SBUF or HBM and of the type of ``value``.

    Raises:
        NkiValidationError: for another shape or type, or a ``value`` that is no scalar, such as a Python integer.
    """
    _check_element("dst", dst)
    if not isinstance(value, NkiScalar):
        remedy = "nisa.memset writes a constant"
        if isinstance(value, VirtualRegister):
            remedy = "nisa.register_store writes a register"
        raise NkiValidationError(f"operand 'value' must be an NkiScalar, got {value!r}; {remedy}")
    if value.dtype != dst.dtype:
        raise NkiValidationError(
            f"operand 'dst' must have the type of 'value', which is {value.dtype}, got {dst}; store the scalar at its "
            f"own width and convert it in memory"
        )
    write(call.core, dst, np.array(value.value("operand 'value'"), dst.dtype.numpy), dst.dtype)


def _check_frontend(core: Core) -> None:
    if not core.is_traced:
        raise NkiValidationError(
            "scalars need the tracer, and NKI_COMPILER_FRONTEND=custom asks for the front end of NKI 0.6: unset it, or "
            "use nisa.register_alloc and nisa.register_load"
        )


def _check_element(name: str, tensor: NkiTensor) -> None:
    check_scalar_type(name, tensor.dtype)
    if tensor.shape != (1, 1):
        remedy = "; reshape it to (1, 1)" if tensor.size == 1 else "; slice one element"
        raise NkiValidationError(f"operand {name!r} must have shape [1, 1], got {tensor}{remedy}")
