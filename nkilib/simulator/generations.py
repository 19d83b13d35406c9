"""Limits of the hardware generations trn1, trn2 and trn3."""

from __future__ import annotations

from dataclasses import dataclass

from .enums import nc_version

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


@dataclass(frozen=True)
class Generation:
    """What differs between generations.

    Attributes:
        name: ``"trn1"``, ``"trn2"`` or ``"trn3"``.
        version: the value of ``nisa.get_nc_version()``.
        sbuf_partition_bytes: physical SBUF bytes of a partition (nki/guides/architecture/*_arch.rst).
        sbuf_usable_bytes: bytes of it that a kernel may use (constants of the open NKI front end, leanprover/KLR).
    """

    name: str
    version: nc_version
    sbuf_partition_bytes: int
    sbuf_usable_bytes: int


TRN1 = Generation("trn1", nc_version.gen2, 192 * 1024, 180_224)
TRN2 = Generation("trn2", nc_version.gen3, 224 * 1024, 212_984)
TRN3 = Generation("trn3", nc_version.gen4, 256 * 1024, 245_752)

_BY_NAME = {
    "trn1": TRN1,
    "inf2": TRN1,
    "gen2": TRN1,
    "trn2": TRN2,
    "gen3": TRN2,
    "trn3": TRN3,
    "gen4": TRN3,
}


def generation(target: str) -> Generation:
    """The generation that ``target`` names, in the spelling of ``NEURON_PLATFORM_TARGET_OVERRIDE``.

    Raises:
        ValueError: if ``target`` names none.
    """
    if target not in _BY_NAME:
        raise ValueError(f"target must be one of {', '.join(_BY_NAME)}, got {target!r}")
    return _BY_NAME[target]
