# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Settings that ``nki.jit`` gives a kernel besides its function, and rules for kernels that call kernels.

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
    """Settings of a launch that computes only the values it needs; see launch/skipping.py.

    Attributes:
        trips: the iteration counts of loops whose bounds are then not computed; None computes all bounds.
    """

    trips: Stated | None = None


@dataclass(frozen=True)
class Settings:
    """The settings of one kernel.

    Attributes:
        compile_config: the compiler settings that it asks for; None if it asks for none.
        specialization_config: the tracer settings; None if there are none.
        platform_target: the target that it is written for; see :func:`~nkilib.simulator.hardware.options.preferring`.
        skipping: the settings of a launch that skips arithmetic; None if it computes everything.

    Raises:
        TypeError: if a configuration has another class.
        ValueError: if the target does not exist.
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
        """Whether kernels that this one calls may ask for another ``CompileConfig``, which is then ignored."""
        return self.specialization_config is not None and self.specialization_config.allow_nested_config_override


def check_nested(name: str, settings: Settings, core: Core) -> None:
    """Check that a kernel called by a kernel asks for the same ``CompileConfig`` as the launched one.

    A kernel that asks for none accepts any. If the settings of the launched kernel allow a difference, core 0 warns of
    it instead.

    Raises:
        NkiValidationError: if they differ; the message lists the differences.
    """
    asked, launch = settings.compile_config, core.launch
    if asked is None or asked == launch.compile_config:
        return
    differences = "; ".join(asked.differences(launch.compile_config))
    conflict = (
        f"kernel {name} asks for another CompileConfig ({differences}) than {launch.kernel}, into which it is inlined"
    )
    if not launch.allows_other_configs:
        raise NkiValidationError(
            f"{conflict}: give both the same, or {launch.kernel} a "
            f"specialization_config=SpecializationConfig(allow_nested_config_override=True)"
        )
    if core.number == 0:
        warnings.warn(f"{conflict}: that of {launch.kernel} holds", UserWarning, stacklevel=3)


def _check_class(what: str, config: object, expected: type) -> None:
    if config is not None and not isinstance(config, expected):
        raise TypeError(f"nki.jit: {what} must be an nki.compiler.{expected.__name__}, got {config!r}")
