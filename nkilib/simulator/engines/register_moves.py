# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions that move, load and store registers and ``NkiScalar``; every engine's sequencer runs them.

- :func:`register_move`, :func:`register_load`, :func:`register_store`: registers;
- :func:`scalar_load`, :func:`scalar_store`: scalars.

The instructions on registers are the only documented instructions without ``name=``. The documentation leaves open
which engine's sequencer runs them; records count them under ``sync``.

Sources of the scalars: the pages of ``nki.isa.scalar_load`` and ``nki.isa.scalar_store`` (2.33).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ..isa.definition import NkiInstruction, Operand, output
from ..machine.core import Core
from ..machine.issue import Call, instruction
from ..tensors.device_integers import LoadedFloat, NkiScalar, VirtualRegister, check_scalar_type, wrap_integer
from ..tensors.tensor import NkiTensor
from ..terms.calls import call_error
from ..terms.dtypes import COPYABLE
from ..terms.enums import Engine, MemoryRegion
from ..terms.errors import NkiValidationError
from .dma_endpoints import pass_over_read, read, write

_REACH = frozenset(MemoryRegion) - {MemoryRegion.psum}


def _check_call(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    error = call_error(name, signature, args, kwargs)
    if error is not None:
        raise error


def _without_name(public: Callable[..., NkiInstruction]) -> Callable[..., NkiInstruction]:
    signature = inspect.signature(public)
    signature = signature.replace(parameters=list(signature.parameters.values())[:-1])

    @wraps(public)
    def nameless(*args: Any, **kwargs: Any) -> NkiInstruction:
        _check_call(f"nisa.{public.__name__}", signature, args, kwargs)
        return public(*args, **kwargs)

    nameless.__signature__ = signature  # type: ignore[attr-defined]
    return nameless


def _checked_register(name: str, value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        remedy = (
            "; nisa.scalar_store takes a scalar, and nl.fori_loop counts in a register if a bound is one"
            if isinstance(value, NkiScalar)
            else ""
        )
        raise NkiValidationError(f"operand {name!r} must be a register of nisa.register_alloc, got {value!r}{remedy}")
    return value


@_without_name
@instruction(operands=(), on=(Engine.sync,), is_lane_bound=False)
def register_move(call: Call, dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """Set the register ``dst`` to ``src``, a 32-bit integer or the present content of another register.

    Raises:
        UninitializedReadError: the register ``src`` was never set.
    """
    target = _checked_register("dst", dst)
    target.loaded_by = call.number
    if isinstance(src, VirtualRegister) and src.is_unknown:
        target.forget(src.origin)
        return
    target.write(src.content("operand 'src'") if isinstance(src, VirtualRegister) else wrap_integer("src", src))


def _check_element(name: str, tensor: NkiTensor) -> None:
    if tensor.shape not in ((1,), (1, 1)):
        raise NkiValidationError(f"operand {name!r} must have shape [1] or [1, 1], got {tensor}")


@_without_name
@instruction(operands=(Operand("src", regions=_REACH),), on=(Engine.sync,), is_lane_bound=False)
def register_load(call: Call, dst: VirtualRegister, src: NkiTensor) -> None:
    """Load the only element of ``src``, a tensor of shape [1] or [1, 1] in HBM or SBUF, into the register ``dst``.

    An integer of fewer than 32 bits keeps its value, and a uint32 integer keeps its bits. A register that holds an
    element of a float type cannot be an index or a condition.
    """
    _check_element("src", src)
    target = _checked_register("dst", dst)
    target.loaded_by = call.number
    if src.storage.is_abstract:
        pass_over_read(call.core, "src", src)
        target.forget(src.storage.origin)
        return
    value = read(call.core, "src", src).reshape(())[()]
    target.write(LoadedFloat(float(value), src.dtype) if src.dtype.is_float else int(value))


@_without_name
@instruction(operands=(output("dst", regions=_REACH),), on=(Engine.sync,), is_lane_bound=False)
def register_store(call: Call, dst: NkiTensor, src: VirtualRegister) -> None:
    """Store the content of the register ``src`` in the only element of ``dst``, of shape [1] or [1, 1] in HBM or SBUF.

    An integer type of fewer than 32 bits receives the low bits. Nothing is cast: a register that holds an element of a
    float type can be stored only in a tensor of that type, an integer only in an integer tensor.

    Raises:
        UninitializedReadError: the register was never set.
    """
    _check_element("dst", dst)
    content = _checked_register("src", src).content("operand 'src'")
    dtype = content.dtype if isinstance(content, LoadedFloat) else None
    if dtype != (dst.dtype if dst.dtype.is_float else None):
        raise NkiValidationError(
            f"operand 'dst': {src} holds {f'a {dtype}' if dtype else 'an integer'} and casts nothing, got {dst}; store "
            f"it to a tensor of its own type and cast that with nisa.tensor_copy"
        )
    value = np.asarray(content.number, np.float32) if isinstance(content, LoadedFloat) else np.array(content, np.int32)
    write(call.core, dst, value.astype(dst.storage.numpy_type_of(dst.dtype)), dst.dtype)


class _Loaded:
    """The object in which :func:`scalar_load` stores the scalar that it creates, for the wrapper to return."""

    scalar: NkiScalar


def _returning_scalar(issued: Callable[[_Loaded, Any], NkiInstruction]) -> Callable[[NkiTensor], NkiScalar]:
    """Return ``scalar_load`` with its documented signature, which returns the scalar instead of a handle."""
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
    """Return ``scalar_store`` with its documented signature, which lacks ``name=`` and returns None."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("dst", "value")]
    signature = inspect.Signature(parameters)

    @wraps(issued)
    def store(*args: Any, **kwargs: Any) -> None:
        _check_call("nisa.scalar_store", signature, args, kwargs)
        issued(*args, **kwargs)

    store.__signature__ = signature  # type: ignore[attr-defined]
    return store


def _check_frontend(core: Core) -> None:
    if not core.is_traced:
        raise NkiValidationError(
            "scalars need the tracer, and NKI_COMPILER_FRONTEND=custom asks for the front end of NKI 0.6: unset it, or "
            "use nisa.register_alloc and nisa.register_load"
        )


def _check_scalar_element(name: str, tensor: NkiTensor) -> None:
    check_scalar_type(name, tensor.dtype)
    if tensor.shape != (1, 1):
        remedy = "; reshape it to (1, 1)" if tensor.size == 1 else "; slice one element"
        raise NkiValidationError(f"operand {name!r} must have shape [1, 1], got {tensor}{remedy}")


@_returning_scalar
@instruction(operands=(Operand("src", regions=_REACH, dtypes=COPYABLE),), on=(Engine.sync,), is_lane_bound=False)
def scalar_load(call: Call, dst: _Loaded, src: NkiTensor) -> None:
    """Return the only element of ``src``, a tensor of shape [1, 1] in SBUF or HBM, as an ``NkiScalar``.

    The type of ``src`` is int32 or int64.

    Raises:
        NkiValidationError: ``src`` has another shape or type, or the front end is that of NKI 0.6, which has no
            scalars.
    """
    _check_frontend(call.core)
    _check_scalar_element("src", src)
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
        NkiValidationError: ``dst`` has another shape or type, or ``value`` is no ``NkiScalar`` but, for instance, a
            Python integer.
    """
    _check_scalar_element("dst", dst)
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
