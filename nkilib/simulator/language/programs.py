# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions without arithmetic: the launch grid, the target, printing, explanations of indices, and registers.

- :func:`program_id`, :func:`num_programs`, :func:`program_ndim`: the launch grid.
- :func:`get_nc_version`, :func:`get_nc_sub_version`: the target.
- :func:`device_print`: printing.
- :func:`explain_index`: sets the text with which out-of-range errors about an index start.
- :func:`register_alloc`: a new register.
"""

from __future__ import annotations

from ..hardware.current import current_generation
from ..isa.indirection import resolve_scalar_offset
from ..machine.core import current_core
from ..machine.issue import check_scope
from ..tensors.device_integers import VirtualRegister, wrap_integer
from ..tensors.tensor import NkiTensor
from ..terms.enums import MemoryRegion, nc_version
from ..terms.errors import NkiValidationError, add_location
from .language_function import language_function


def _check_axis(function: str, axis: int) -> None:
    if axis != 0:
        raise NkiValidationError(f"{function}: the launch grid has one axis, 0; got {axis!r}")


def program_id(axis: int = 0) -> int:
    """Return the number of the core that makes this call, 0 or 1; ``axis`` must be 0."""
    core = current_core("nl.program_id")
    _check_axis("nl.program_id", axis)
    return core.number


def num_programs(axes: int | tuple[int, ...] = 0) -> int:
    """Return the number of cores that run the kernel; ``axes`` is 0, the only axis of the grid, or a tuple of zeros."""
    core = current_core("nl.num_programs")
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        _check_axis("nl.num_programs", axis)
    return core.launch.cores


def program_ndim() -> int:
    """Return the number of dimensions of the launch grid: 1 for ``kernel[n](...)``, 0 for ``kernel(...)``."""
    return current_core("nl.program_ndim").launch.grid_dimensions


def get_nc_version() -> nc_version:
    """Return the generation of the NeuronCore that the kernel is simulated for."""
    return current_generation().version


def get_nc_sub_version() -> int:
    """Return the silicon revision within the generation, from 0: 1 on trn3, whose first revision is ``trn3_a0``."""
    return current_generation().revision


def explain_index(
    index: NkiTensor,
    what: str,
    values: NkiTensor,
    first_row: int,
    row_step: int,
    limit: int,
    at_fault: NkiTensor | None = None,
) -> None:
    """Make out-of-range errors about ``index`` start with the text ``row R has <what> <value>``.

    If the value is outside [0, limit), the error says that too. A partition may have the values of several rows; the
    text is about the first value at fault.

    Args:
        index: SBUF tensor of shape (P, 1) that is used as a vector offset.
        what: word for the values in the text, for instance ``"target"``.
        values: SBUF tensor of shape (P, n): the values from which the index in partition p was computed.
        first_row: row of the first value of partition 0.
        row_step: difference between the rows of consecutive partitions.
        limit: upper bound of the values, which should lie in [0, limit).
        at_fault: SBUF tensor of shape (P, n), not 0 for values at fault; None if n is 1.
    """

    def describe(partition: int) -> str:
        values.storage.need_values(values)
        place = 0
        if at_fault is not None:
            at_fault.storage.need_values(at_fault)
            place = int((at_fault.array[partition] != 0).argmax())
        value = int(values.array[partition].reshape(-1)[place])
        outside = "" if 0 <= value < limit else f", outside [0, {limit})"
        return f"row {first_row + partition * row_step + place} has {what} {value}{outside}"

    index.storage.explain_indices(describe)


@language_function
def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print ``print_prefix`` and the values of ``tensor``, which is in SBUF or HBM.

    The text is printed at once; a launch with ``skip_arithmetic`` prints it at its end. In a launch on two cores, the
    line names the core. Unwritten elements show as ``--``. The call is not recorded as an instruction, and does not
    count as a read of the elements.
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


def register_alloc(x: int | None = None) -> VirtualRegister:
    """Return a new register: unset, or with the 32 bits of the integer ``x``.

    Raises:
        NkiValidationError: no kernel is running, or ``x`` is not an integer of 32 bits.
    """
    function = "nisa.register_alloc"
    current_core(function)
    try:
        return VirtualRegister(None if x is None else wrap_integer("x", x))
    except NkiValidationError as error:
        add_location(error, function)
        raise
