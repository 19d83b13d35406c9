# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacements of TRL's functions, which pass each call to the kernels or to TRL's own code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nkilib.torch.trl.contract import INSTALL, OUTPUTS, Place
from nkilib.torch.trl.divergences import DivergenceRecipe, DivergenceResults, LogitOptions
from nkilib.torch.trl.operands import Head
from nkilib.torch.trl.scores import ScoreRecipe, TokenResults
from nkilib.torch.trl.zero3 import gathered_results, is_sharded


@dataclass(frozen=True, eq=False)
class Installation:
    """One call of ``install`` that has not been undone; instances are compared by identity.

    Attributes:
        devices: the device types whose tensors the kernels take.
    """

    devices: frozenset[str]


@dataclass
class Router:
    """An object that replaces a function of TRL, a class whose ``apply`` is called, and passes each call to the kernels
    or to TRL's own code.

    Attributes:
        place: the location of the replaced function.
        installed: the installations that have not been undone, in their order.
    """

    place: Place
    installed: list[Installation] = field(default_factory=list)

    def is_for(self, tensor: Tensor) -> bool:
        """Return whether the kernels are installed for the device of a tensor."""
        return any(tensor.device.type in installation.devices for installation in self.installed)

    def add(self, installation: Installation) -> None:
        """Add an installation, and make trainers call this router."""
        self.installed.append(installation)
        self.place.put(self)

    def remove(self, installation: Installation) -> None:
        """Remove an installation, and make trainers call TRL's function again if it was the last."""
        if installation in self.installed:
            self.installed.remove(installation)
        if not self.installed and self.place.current is self:
            self.place.put(self.place.own)


class ScoreRouter(Router):
    """The replacement of ``ChunkedLogProbFunction``."""

    def apply(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        final_logit_softcapping: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = OUTPUTS,
    ) -> TokenResults:
        """Return TRL's results, from the kernels where these are installed for the device and take the operands."""
        recipe = ScoreRecipe(temperature, final_logit_softcapping, logit_scale, outputs)
        head, operands = Head(hidden, weight, bias), (hidden, weight, bias, targets)
        if not self.is_for(hidden) or not recipe.is_supported(head):
            options = (temperature, chunk_size, final_logit_softcapping, logit_scale, outputs)
            own: TokenResults = self.place.own.apply(*operands, *options)
            return own
        if is_sharded(*head.parameters):  # TRL has gathered them around this call
            return gathered_results(recipe, self.place, operands, ((1, 2),))
        return recipe.results(operands)


class DivergenceRouter(Router):
    """The replacement of ``ChunkedDivergenceFunction``."""

    def apply(
        self,
        student_hidden: Tensor,
        student_weight: Tensor,
        student_bias: Tensor | None,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        teacher_bias: Tensor | None,
        beta: float,
        temperature: float = 1.0,
        student_logit_scale: float = 1.0,
        student_final_logit_softcapping: float | None = None,
        teacher_logit_scale: float = 1.0,
        teacher_final_logit_softcapping: float | None = None,
    ) -> DivergenceResults:
        """Return TRL's results, from the kernels where these are installed for the device and take the operands."""
        student = Head(student_hidden, student_weight, student_bias)
        teacher = Head(teacher_hidden, teacher_weight, teacher_bias)
        of_student = LogitOptions(student_logit_scale, student_final_logit_softcapping)
        of_teacher = LogitOptions(teacher_logit_scale, teacher_final_logit_softcapping)
        recipe, operands = DivergenceRecipe(beta, temperature, of_student, of_teacher), (*student, *teacher)
        if not self.is_for(student_hidden) or not recipe.is_supported(student, teacher):
            scales = (of_student.scale, of_student.softcap, of_teacher.scale, of_teacher.softcap)
            own: DivergenceResults = self.place.own.apply(*operands, beta, temperature, *scales)
            return own
        if is_sharded(*student.parameters, *teacher.parameters):
            with self.place.gathered(student.parameters, teacher.parameters):  # as TRL's own function does
                return gathered_results(recipe, self.place, operands, ((1, 2), (4, 5)))
        return recipe.results(operands)


def router_of(place: Place, kind: type[Router]) -> Router:
    """Return the router at a location, or a new one, which replaces the function from its first installation on.

    Raises:
        RuntimeError: the location holds neither TRL's function nor a router.
    """
    current: Any = place.current
    if isinstance(current, kind):
        return current
    if current is place.own:
        return kind(place)
    router_class = current if isinstance(current, type) else type(current)
    raise RuntimeError(
        f"{INSTALL}: {place.module.__name__}.{place.attribute} must be TRL's own {place.own.__qualname__}, got "
        f"{router_class.__module__}.{router_class.__qualname__}; undo what has replaced it, and install again"
    )
