# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The limits that all hardware generations share, and the names of the generations, whose own values have files."""

from __future__ import annotations

from .generation import Generation as Generation
from .trn1 import TRN1
from .trn2 import TRN2
from .trn3 import TRN3, TRN3_A0

# The same on every generation (nki/guides/architecture/*_arch.rst).
PARTITIONS = 128
PSUM_BANKS = 8
PSUM_BANK_BYTES = 2 * 1024
PSUM_PARTITION_BYTES = PSUM_BANKS * PSUM_BANK_BYTES
# "each F axis in the tensor can have a size expressed in uint16 and a stride expressed in int16, measured in data
# elements" (trainium_inferentia2_arch.rst, Data Access).
FREE_AXIS_MAX = 65535
FREE_STRIDE_MAX = 32767
# "accessing elements from up to four-dimensional arrays" within a partition (nki/deep-dives/nki-aps.rst).
FREE_DIMENSIONS_MAX = 4
# Partitions that one of the eight GpSimd cores reaches (docstring of nisa.nonzero_with_count).
GPSIMD_CORE_PARTITIONS = 16

_BY_NAME = {
    "trn1": TRN1,
    "inf2": TRN1,
    "gen2": TRN1,
    "trn2": TRN2,
    "gen3": TRN2,
    "trn3": TRN3,
    "gen4": TRN3,
    "trn3_a0": TRN3_A0,
    "trn3pre": TRN3_A0,
}

# What a target may be called: as ``NEURON_PLATFORM_TARGET_OVERRIDE`` has it, and two names of the first trn3.
TARGETS = tuple(_BY_NAME)


def generation(target: str) -> Generation:
    """Return the generation that ``target`` names, in the spelling of ``NEURON_PLATFORM_TARGET_OVERRIDE``.

    Raises:
        ValueError: if ``target`` names none.
    """
    if target not in _BY_NAME:
        raise ValueError(f"target must be one of {', '.join(_BY_NAME)}, got {target!r}")
    return _BY_NAME[target]
