# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What ``nki.jit`` is told of a kernel besides its function, and what holds where one kernel calls another.

Source: page ``nki.jit`` of the API reference of NKI 0.7 for the two configurations; published kernels for
``platform_target``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from ..hardware.limits import generation
from ..machine.core import Core
from ..machine.trips import Stated
from ..terms.compilation import CompileConfig, SpecializationConfig
from ..terms.errors import NkiValidationError


@dataclass(frozen=True)
class Skipping:
    """That a launch computes only what it has to; see launch/skipping.py.

    Attributes:
        trips: how often loops run whose bounds are among the values that are left out; None to compute these.
    """

    trips: Stated | None = None


@dataclass(frozen=True)
class Settings:
    """Of one kernel.

    Attributes:
        compile_config: what it asks of the compiler; None if it asks for nothing.
        specialization_config: how it is traced; None if it does not say.
        platform_target: the target that it is written for; see :func:`~nkilib.simulator.hardware.options.preferring`.
        skipping: how a launch leaves arithmetic out; None if it computes.

    Raises:
        TypeError: if a configuration is of another class.
        ValueError: if the target is none.
    """

    compile_config: CompileConfig | None = None
    specialization_config: SpecializationConfig | None = None
    platform_target: str | None = None
    skipping: Skipping | None = None

    def __post_init__(self) -> None:
        _check_class("compile_config", self.compile_config, CompileConfig)
        _check_class("specialization_config", self.specialization_config, SpecializationConfig)
        if self.platform_target is not None:
            try:
                generation(self.platform_target)
            except ValueError as error:
                raise ValueError(f"nki.jit: platform_{error}") from None

    @property
    def allows_other_configs(self) -> bool:
        """Whether kernels that this one calls may ask for another ``CompileConfig``, in vain."""
        return self.specialization_config is not None and self.specialization_config.allow_nested_config_override


def check_nested(name: str, settings: Settings, core: Core) -> None:
    """Require that a kernel called by a kernel asks for no other ``CompileConfig`` than the launched one has.

    One that asks for none is content with any. Where the launched kernel allows it, core 0 warns instead.

    Raises:
        NkiValidationError: naming where the two differ.
    """
    asked, launch = settings.compile_config, core.launch
    if asked is None or asked == launch.compile_config:
        return
    differences = "; ".join(asked.differences(launch.compile_config))
    what = (
        f"kernel {name} asks for another CompileConfig ({differences}) than {launch.kernel}, into which it is inlined"
    )
    if not launch.allows_other_configs:
        raise NkiValidationError(
            f"{what}: give both the same, or {launch.kernel} a "
            f"specialization_config=SpecializationConfig(allow_nested_config_override=True)"
        )
    if core.number == 0:
        warnings.warn(f"{what}: that of {launch.kernel} holds", UserWarning, stacklevel=3)


def _check_class(what: str, config: object, expected: type) -> None:
    if config is not None and not isinstance(config, expected):
        raise TypeError(f"nki.jit: {what} must be an nki.compiler.{expected.__name__}, got {config!r}")
