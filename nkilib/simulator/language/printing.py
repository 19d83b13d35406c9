# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.device_print``: printing from a kernel."""

from __future__ import annotations

from ..isa.offsets import resolve_scalar_offset
from ..machine.core import current_core
from ..machine.operands import check_scope
from ..tensors.tensor import NkiTensor
from ..terms.errors import NkiValidationError
from ..terms.regions import MemoryRegion
from .located import language_function


@language_function
def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print ``print_prefix`` and the values of ``tensor``, which is in SBUF or HBM, as soon as the call runs.

    A launch with ``skip_arithmetic`` prints at its end. Where two cores run, the line names the core. Elements never
    written show as ``--``. Nothing is recorded, and the elements do not count as read.
    """
    core = current_core("nl.device_print")
    if not isinstance(print_prefix, str):
        raise NkiValidationError(f"print_prefix must be a string, got {print_prefix!r}")
    if not isinstance(tensor, NkiTensor) or tensor.buffer is MemoryRegion.psum:
        raise NkiValidationError(f"tensor must be in sbuf or HBM, got {tensor!r}; bring it there with nl.copy")
    check_scope(core, "tensor", tensor)
    if tensor.is_indirect():
        tensor = resolve_scalar_offset("tensor", tensor)
    core.unrepeatable = "it prints with nl.device_print"
    place = f" ({core.name})" if core.name else ""
    # In one piece: the other core may print at the same time.
    line, left_out = f"{print_prefix}{place}: {tensor!s}\n", core.launch.left_out
    if left_out is None:
        print(line, end="", flush=True)
    else:
        left_out.keep_output(line)
