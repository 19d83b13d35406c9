# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The compiler settings of a kernel: ``CompileConfig``, with ``AddressRotation``, and ``SpecializationConfig``.

The simulator compiles nothing, so no compiler setting changes a result. Values are checked, and nested kernels must
have the same settings.

Source: pages ``nki.compiler`` and ``nki.compiler.CompileConfig`` of the API reference of NKI 0.7. The reference hides
the defaults of some fields; where the reference states no default, it is False here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from enum import Enum


class AddressRotation(Enum):
    """The choice of the tensors that the compiler may move to other addresses.

    ``AUTO``: the tensors that the compiler has placed itself; ``ENABLE``: all tensors; ``DISABLE``: none.
    """

    AUTO = "auto"
    ENABLE = "enable"
    DISABLE = "disable"


def _check_flags(config: CompileConfig | SpecializationConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(field.default, bool) and not isinstance(value, bool):
            raise TypeError(f"{type(config).__name__}.{field.name} must be a bool, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Compiler settings of one kernel, for ``nki.jit(compile_config=...)``. None of them changes a simulated result.

    Attributes:
        address_rotation: the tensors that the compiler may move.
        non_ssa_legalization: whether the compiler runs its pass ``non_ssa_legalization``.
        dead_code_elim: whether the compiler may remove values that nothing reads.
        barrier_check: whether the compiler checks the barriers between the cores; the simulator always checks them.
        prefetch_auto: whether the compiler may keep a ring buffer of prefetched loads in SBUF. True is an error if the
            environment variable ``NKI_PREFETCH_RING_SIZE`` is set.
        nki_alloc_fallback: whether the compiler may try another allocator where NKI's allocator finds no room. The
            simulator's option ``capacity`` does not depend on this field.

    Raises:
        TypeError: if the value of a field has a wrong type.
        ValueError: if ``prefetch_auto`` and ``NKI_PREFETCH_RING_SIZE`` are both set.
    """

    address_rotation: AddressRotation = AddressRotation.AUTO
    non_ssa_legalization: bool = False
    dead_code_elim: bool = False
    barrier_check: bool = False
    prefetch_auto: bool = False
    nki_alloc_fallback: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.address_rotation, AddressRotation):
            raise TypeError(
                f"CompileConfig.address_rotation must be a member of nki.compiler.AddressRotation, got "
                f"{self.address_rotation!r}"
            )
        _check_flags(self)
        if self.prefetch_auto and os.environ.get("NKI_PREFETCH_RING_SIZE"):
            raise ValueError(
                "CompileConfig(prefetch_auto=True) and the environment variable NKI_PREFETCH_RING_SIZE exclude each "
                "other: unset the one that is not meant"
            )

    def differences(self, other: CompileConfig) -> list[str]:
        """Return a text ``name=<own value>, not <value of other>`` for each field in which the two configurations
        differ.
        """
        return [
            f"{field.name}={getattr(self, field.name)}, not {getattr(other, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]


@dataclass(frozen=True, kw_only=True)
class SpecializationConfig:
    """Tracer settings of one kernel, for ``nki.jit(specialization_config=...)``.

    Attributes:
        allow_nested_config_override: whether a nested kernel with another ``CompileConfig`` gives a warning and runs
            with this kernel's configuration, instead of raising an error.

    Raises:
        TypeError: if ``allow_nested_config_override`` is not a bool.
    """

    allow_nested_config_override: bool = False

    def __post_init__(self) -> None:
        _check_flags(self)
