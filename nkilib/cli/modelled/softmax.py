# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax of a matrix, along its last or its first axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .family import Family

if TYPE_CHECKING:
    from nkilib.experimental.softmax import SoftmaxTiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.profile import AskedTrips

AXES = {"last": -1, "first": 0}
_MOST_EQUAL_CHUNKS = 8


@dataclass(frozen=True)
class SoftmaxKernels(Family):
    """Softmax and log-softmax of a matrix."""

    NAMES: ClassVar[tuple[str, ...]] = ("softmax", "log_softmax")
    SIZES: ClassVar[dict[str, str]] = {"chunk_size": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = (*SIZES, "axis")
    CHOOSER: ClassVar[str] = "choose_softmax_tiling"
    CONDITION: ClassVar[str] = "with --family softmax: "
    WHICH: ClassVar[str] = "with --family softmax or log_softmax"

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return f"{self.options.family}_{self.direction}"

    def chosen(self, **arguments: Any) -> SoftmaxTiling:
        """Return the default tiling."""
        from nkilib.experimental.softmax import choose_softmax_tiling
        from nkilib.experimental.softmax.tensors import Kind

        kind = Kind(self.options.family)
        return choose_softmax_tiling(self.shape, self._axis, self.dtype, self.direction, kind=kind)

    def tilings(self) -> set[SoftmaxTiling]:
        """Return the tilings to try."""
        from nkilib.core.hardware import div_ceil
        from nkilib.experimental.softmax import SoftmaxTiling

        size = self.shape[self._axis]
        equal = {div_ceil(size, chunks) for chunks in range(1, _MOST_EQUAL_CHUNKS + 1)}
        return {SoftmaxTiling(chunk_size) for chunk_size in self.options.chunk_size or equal}

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Profile a launch. It has no loop that ``--trips`` could name."""
        from nkilib.experimental.softmax.profiling import profile_softmax_launch
        from nkilib.experimental.softmax.tensors import Kind

        kind, keywords = Kind(self.options.family), {**tiling._asdict(), **arguments}
        return profile_softmax_launch(
            self.shape, self._axis, self.dtype, kind, self.direction, target=self.target, cores=cores, **keywords
        )

    @property
    def _axis(self) -> int:
        return AXES[self.options.axis or "last"]
