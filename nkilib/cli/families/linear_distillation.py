# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from hidden states: the divergence of a student from a teacher, from hidden states and output weights of
both models.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from .linear import LinearKernels

if TYPE_CHECKING:
    from nkilib.experimental.loss import LinearTiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips

_POSITION_BLOCKS = (256, 512, 1024, 2048)
_CLASS_BLOCKS = {"forward": (256, 384, 512), "mixture": (256, 384, 512), "backward": (256, 384, 512, 768, 1024)}
# Options that the chooser of a tiling takes; any other option makes the launch an extended one.
_OF_CHOICE = ("beta", "memory_limit")


@dataclass(frozen=True)
class LinearDistillationKernels(LinearKernels):
    """Divergences from hidden states and output weights of both models, whose weights have the same layout."""

    NAMES: ClassVar[tuple[str, ...]] = ("linear_distillation",)
    OPTIONS: ClassVar[tuple[str, ...]] = (*LinearKernels.OPTIONS, "teacher_features")
    CHOOSER: ClassVar[str] = "choose_linear_distillation_tiling"
    WHICH: ClassVar[str] = "with --family linear_distillation"

    @property
    def refusal(self) -> str | None:
        """The reason why the family has no launch for these options; None if it has one."""
        if self.direction == "forward_backward":
            return "argument --direction: forward_backward is for linear cross-entropy only: leave out --family"
        for name in ("features", "teacher_features"):
            if not getattr(self.options, name):
                return f"argument --{name.replace('_', '-')}: is required for linear_distillation"
        return None

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return f"linear_distillation_{self.direction}"

    def chosen(self, **arguments: Any) -> LinearTiling:
        """Return the default tiling."""
        from nkilib.experimental.loss import choose_linear_distillation_tiling

        keywords = {name: arguments[name] for name in _OF_CHOICE if name in arguments}
        return choose_linear_distillation_tiling(
            *self._sizes,
            target=self.target,
            student_weight_layout=self._layout,
            teacher_weight_layout=self._layout,
            extended=bool(arguments.keys() - set(_OF_CHOICE)),
            **keywords,
        )

    def tilings(self) -> set[LinearTiling]:
        """Return the tilings to try."""
        from nkilib.experimental.loss import LinearTiling

        classes = self.options.class_block or _CLASS_BLOCKS[self.direction]
        return {LinearTiling(*size) for size in product(self.options.position_block or _POSITION_BLOCKS, classes)}

    def profile(self, tiling: LinearTiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Profile a launch. It has no loop that ``--trips`` could name."""
        from nkilib.experimental.loss import LinearTiling
        from nkilib.experimental.loss.profiling import profile_linear_distillation_launch

        layouts = {f"{name}_weight_layout": self._layout for name in ("student", "teacher")}
        keywords = {"target": self.target, "cores": cores, **layouts, **arguments}
        return profile_linear_distillation_launch(*self._sizes, LinearTiling(*tiling), **keywords)

    @property
    def _sizes(self) -> tuple[int, int, int, int, str, str]:
        options = self.options
        sizes = options.positions, options.features, options.teacher_features, options.vocab
        return (*sizes, self.dtype, self.direction)
