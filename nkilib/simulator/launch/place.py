# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where a launch runs, as the environment and ``using`` have it: read once, when it begins."""

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
    """What a launch takes from outside of its kernel and its arguments.

    Attributes:
        options: in force.
    """

    options: Options

    @classmethod
    def here(cls) -> Place:
        """As it is now.

        Raises:
            ValueError: if a variable of the options has a value that is not documented.
        """
        return cls(current_options())

    @cached_property
    def said(self) -> lnc.Said:
        """What the environment says of the number of cores. A launch that is replayed does not ask.

        Raises:
            ValueError: if it has a number of cores that does not exist.
        """
        return lnc.Said.now()

    def cores_of(self, kernel: Launchable, arguments: object = ()) -> int:
        """The cores of a launch. No compiler takes part, so what it would take by default need not agree.

        A launch on shapes alone asks what a launch somewhere would do: of the cores that it names, this environment is
        no judge.

        Raises:
            NkiValidationError: if grid and environment disagree, or the target has no logical cores of that size.
            ValueError: if the environment has a number of cores that does not exist.
        """
        try:
            count = self.said.launch_cores(kernel.__name__, kernel.cores, compiler_default=None)
        except lnc.CoresDisagreeError as error:
            if kernel.cores is None or not any(isinstance(leaf, Spec) for leaf in leaves_of(arguments)):
                raise NkiValidationError(str(error)) from None
            count = kernel.cores
        generation = self.options.generation
        if count > 1 and generation.version is nc_version.gen2:
            launch = f"[{count}]" if kernel.cores else f" with {self.said.of_kernel(None).source}"
            has_variable = self.said.variable is not None
            one = f"set {lnc.VARIABLE}=1 and launch on one core" if has_variable else "launch on one core"
            raise NkiValidationError(
                f"{kernel.__name__}{launch}: {generation.name} has no logical NeuronCores of two; {one}, or set "
                f"NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3"
            )
        return count
