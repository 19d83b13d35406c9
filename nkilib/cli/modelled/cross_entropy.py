# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy from logits, plain and extended."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from .family import Family

if TYPE_CHECKING:
    from nkilib.experimental.loss import Tiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.profile import AskedTrips


_MOST_EQUAL_CHUNKS = 16


@dataclass(frozen=True)
class LogitsKernels(Family):
    """Cross-entropy from logits."""

    NAMES: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    SIZES: ClassVar[dict[str, str]] = {"positions_per_batch": "P", "chunk_size": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = (*SIZES, "extended")
    CHOOSER: ClassVar[str] = "choose_tiling"
    CONDITION: ClassVar[str] = ""
    WHICH: ClassVar[str] = "without --features and --family"

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return f"{'extended_' if self.options.extended else ''}cross_entropy_{self.direction}"

    @property
    def takes_options(self) -> bool:
        """Whether the kernel has options for ``--arg``."""
        return bool(self.options.extended)

    def chosen(self, **arguments: Any) -> Tiling:
        """Return the default tiling."""
        from nkilib.experimental.loss import choose_tiling

        return choose_tiling(*self._launch, self.target, extended=self.options.extended)

    def tilings(self) -> set[Tiling]:
        """Return the tilings to try."""
        from nkilib.core.hardware import div_ceil
        from nkilib.experimental.loss import Tiling

        equal = {div_ceil(self.options.vocab, chunks) for chunks in range(1, _MOST_EQUAL_CHUNKS + 1)}
        sizes = product(self.options.positions_per_batch or [128], self.options.chunk_size or equal)
        return {Tiling(*size) for size in sizes}

    def profile(self, tiling: Tiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Profile a launch; ``arguments`` are options of the kernel."""
        from nkilib.experimental.loss import Tiling
        from nkilib.experimental.loss.profiling import profile_launch

        target, is_extended = self.target, self.options.extended
        cut = Tiling(*tiling)
        return profile_launch(
            *self._launch, cut, target=target, cores=cores, extended=is_extended, trips=trips, **arguments
        )

    @property
    def _launch(self) -> tuple[int, int, str, str]:
        return self.options.positions, self.options.vocab, self.dtype, self.direction
