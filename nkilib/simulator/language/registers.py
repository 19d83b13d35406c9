# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nisa.register_alloc``: the only function of ``nki.isa`` that creates something and runs no instruction."""

from __future__ import annotations

from ..machine.core import current_core
from ..tensors.registers import VirtualRegister, wrap_integer
from ..terms.errors import NkiValidationError, add_location


def register_alloc(x: int | None = None) -> VirtualRegister:
    """Return a new register: unset, or with the 32 bits of the integer ``x``.

    Raises:
        NkiValidationError: outside a kernel, or if ``x`` is not an integer of 32 bits.
    """
    function = "nisa.register_alloc"
    current_core(function)
    try:
        return VirtualRegister(None if x is None else wrap_integer("x", x))
    except NkiValidationError as error:
        add_location(error, function)
        raise
