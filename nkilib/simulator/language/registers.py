# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nisa.register_alloc``: the only function of ``nki.isa`` that makes something and runs no instruction."""

from __future__ import annotations

from ..machine.core import current_core
from ..tensors.registers import VirtualRegister, wrap_integer
from ..terms.errors import NkiValidationError, add_location


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A new register: unset, or with the 32 bits of the integer ``x``.

    Raises:
        NkiValidationError: outside a kernel, or if ``x`` is no integer of 32 bits.
    """
    what = "nisa.register_alloc"
    current_core(what)
    try:
        return VirtualRegister(None if x is None else wrap_integer("x", x))
    except NkiValidationError as error:
        add_location(error, what)
        raise
