# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The environment of a launch, as set by environment variables and ``using``, read once when the launch begins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from nkilib.base import lnc

from ..hardware.options import Options, current_options
from ..terms.enums import nc_version
from ..terms.errors import NkiValidationError
from ..terms.spec import Spec
from .containers import leaves_of
from .launchable import Launchable


@dataclass(frozen=True)
class Place:
    """The environment of a launch: its inputs other than the kernel and the arguments.

    Attributes:
        options: the options in force.
    """

    options: Options

    @classmethod
    def here(cls) -> Place:
        """Return the current environment.

        Raises:
            ValueError: if a variable of the options has a value that is not documented.
        """
        return cls(current_options())

    @cached_property
    def core_settings(self) -> lnc.LncSettings:
        """The environment's settings for the number of cores. A replayed launch does not read them.

        Raises:
            ValueError: if the environment has a number of cores that does not exist.
        """
        return lnc.LncSettings.now()

    def cores_of(self, kernel: Launchable, arguments: object = ()) -> int:
        """Return the number of cores of a launch, from the kernel's grid and the environment.

        A default of the compiler for this number is ignored, because no compiler takes part. A launch on shapes alone
        models a launch on some machine; the number of cores in its grid is therefore not checked against this
        environment.

        Raises:
            NkiValidationError: if grid and environment disagree, or the target has no logical cores of that size.
            ValueError: if the environment has a number of cores that does not exist.
        """
        try:
            count = self.core_settings.launch_cores(kernel.__name__, kernel.cores, compiler_default=None)
        except lnc.CoresDisagreeError as error:
            if kernel.cores is None or not any(isinstance(leaf, Spec) for leaf in leaves_of(arguments)):
                raise NkiValidationError(str(error)) from None
            count = kernel.cores
        generation = self.options.generation
        if count > 1 and generation.version is nc_version.gen2:
            launch = f"[{count}]" if kernel.cores else f" with {self.core_settings.of_kernel(None).source}"
            has_variable = self.core_settings.variable is not None
            alone = f"set {lnc.VARIABLE}=1"
            remedy = (
                f"{alone} and launch on one core"
                if has_variable
                else f"launch on one core (where a library launches, {alone})"
            )
            raise NkiValidationError(
                f"{kernel.__name__}{launch}: {generation.name} has no logical NeuronCores of two; {remedy}, or set "
                f"NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3"
            )
        return count
