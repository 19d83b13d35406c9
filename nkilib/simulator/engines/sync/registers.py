# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions on registers, which every engine's sequencer runs: move, load and store.

They are the only documented instructions without ``name=``. The documentation leaves open which sequencer runs them;
records count them under ``sync``.
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
from ...machine.issue import instruction
from ...tensors.registers import LoadedFloat, VirtualRegister, wrap_integer
from ...tensors.scalars import NkiScalar
from ...tensors.tensor import NkiTensor
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...terms.regions import MemoryRegion
from ...terms.signatures import call_error
from ..dma.rows import pass_over_read, read, write

_REACH = frozenset(MemoryRegion) - {MemoryRegion.psum}


def _without_name(public: Callable[..., NkiInstruction]) -> Callable[..., NkiInstruction]:
    """Wrap an instruction so that it has its documented signature, which ends without ``name=``."""
    signature = inspect.signature(public)
    signature = signature.replace(parameters=list(signature.parameters.values())[:-1])

    @wraps(public)
    def nameless(*args: Any, **kwargs: Any) -> NkiInstruction:
        error = call_error(f"nisa.{public.__name__}", signature, args, kwargs)
        if error is not None:
            raise error
        return public(*args, **kwargs)

    nameless.__signature__ = signature  # type: ignore[attr-defined]
    return nameless


@_without_name
@instruction(operands=(), on=(Engine.sync,), is_lane_bound=False)
def register_move(call: Call, dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """Set the register ``dst`` to ``src``: an integer of 32 bits, or the present content of another register.

    Raises:
        UninitializedReadError: if the register ``src`` was never set.
    """
    target = _checked_register("dst", dst)
    target.loaded_by = call.number
    if isinstance(src, VirtualRegister) and src.is_unknown:
        target.forget(src.origin)
        return
    target.write(src.content("operand 'src'") if isinstance(src, VirtualRegister) else wrap_integer("src", src))


@_without_name
@instruction(operands=(Operand("src", regions=_REACH),), on=(Engine.sync,), is_lane_bound=False)
def register_load(call: Call, dst: VirtualRegister, src: NkiTensor) -> None:
    """Load the only element of ``src``, a tensor of shape [1] or [1, 1] in HBM or SBUF, into the register ``dst``.

    Integers of fewer than 32 bits keep their value, and uint32 integers keep their bits. A register that holds an
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

    Integer types narrower than 32 bits take the low bits. A register casts nothing: an element of a float type goes
    to a tensor of that type only, an integer to an integer tensor.

    Raises:
        UninitializedReadError: if the register was never set.
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


def _checked_register(name: str, value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        remedy = (
            "; nisa.scalar_store takes a scalar, and nl.fori_loop counts in a register if a bound is one"
            if isinstance(value, NkiScalar)
            else ""
        )
        raise NkiValidationError(f"operand {name!r} must be a register of nisa.register_alloc, got {value!r}{remedy}")
    return value


def _check_element(name: str, tensor: NkiTensor) -> None:
    if tensor.shape not in ((1,), (1, 1)):
        raise NkiValidationError(f"operand {name!r} must have shape [1] or [1, 1], got {tensor}")
