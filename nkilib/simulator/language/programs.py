# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The launch grid as a kernel sees it, and the generation that it runs on."""

from __future__ import annotations

from ..hardware.current import current_generation
from ..machine.core import current_core
from ..terms.enums import nc_version
from ..terms.errors import NkiValidationError


def program_id(axis: int = 0) -> int:
    """Return the number of the core that runs this, 0 or 1."""
    core = current_core("nl.program_id")
    _check_axis("nl.program_id", axis)
    return core.number


def num_programs(axes: int | tuple[int, ...] = 0) -> int:
    """Return the number of cores that run the kernel; ``axes`` is 0 or a tuple of it, the one axis of the grid."""
    core = current_core("nl.num_programs")
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        _check_axis("nl.num_programs", axis)
    return core.launch.cores


def program_ndim() -> int:
    """Return the number of dimensions of the launch grid: 1 for ``kernel[n](...)``, 0 for ``kernel(...)``."""
    return current_core("nl.program_ndim").launch.grid_dimensions


def _check_axis(function: str, axis: int) -> None:
    if axis != 0:
        raise NkiValidationError(f"{function}: the launch grid has one axis, 0; got {axis!r}")


def get_nc_version() -> nc_version:
    """Return the generation of the NeuronCore that the kernel is simulated for."""
    return current_generation().version


def get_nc_sub_version() -> int:
    """Return the silicon revision within the generation, from 0: 1 on trn3, whose first revision is ``trn3_a0``."""
    return current_generation().revision
