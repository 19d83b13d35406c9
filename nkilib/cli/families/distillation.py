"""Distillation: the divergence of a student's distribution from a teacher's, from the logits of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .family import Family

if TYPE_CHECKING:
    from nkilib.experimental.loss.distillation.host.tiling import DistillationTiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips

_CHUNKS = (512, 1024, 2048, 3072, 4096)


@dataclass(frozen=True)
class DistillationKernels(Family):
    """Of logits of one type."""

    NAMES: ClassVar[tuple[str, ...]] = ("distillation",)
    SIZES: ClassVar[dict[str, str]] = {"chunk_size": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "choose_distillation_tiling"
    CONDITION: ClassVar[str] = "with --family distillation: "
    WHICH: ClassVar[str] = "with --family distillation"

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"distillation_{self.direction}"

    def chosen(self, **arguments: Any) -> DistillationTiling:
        """The default."""
        from nkilib.experimental.loss.distillation.host.tiling import choose_distillation_tiling

        of_pair = 2 * (4 if self.dtype == "float32" else 2)
        is_mixed = 0 < arguments.get("beta", 0) < 1
        return choose_distillation_tiling(self.options.vocab, of_pair, is_mixed, self.is_backward)

    def tilings(self) -> set[DistillationTiling]:
        """To try."""
        from nkilib.experimental.loss.distillation.host.tiling import DistillationTiling

        return {DistillationTiling(each) for each in self.options.chunk_size or _CHUNKS}

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch; ``trips`` are those of its loop over positions that are computed anew."""
        from nkilib.experimental.loss.distillation.host.profiling import profile_distillation_launch

        given = {"target": self.target, "cores": cores, "trips": trips, **tiling._asdict(), **arguments}
        return profile_distillation_launch(*self.shape, self.dtype, self.direction, **given)
