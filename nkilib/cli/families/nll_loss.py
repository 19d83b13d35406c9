"""Negative log-likelihood of log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .family import Family

if TYPE_CHECKING:
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips


class NoTiling(NamedTuple):
    """Nothing is to be chosen."""


@dataclass(frozen=True)
class NllLossKernels(Family):
    """Their mean."""

    NAMES: ClassVar[tuple[str, ...]] = ("nll_loss",)
    SIZES: ClassVar[dict[str, str]] = {}
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    CHOOSER: ClassVar[str] = ""
    CONDITION: ClassVar[str] = ""
    WHICH: ClassVar[str] = "with --family nll_loss"

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"nll_loss_{self.direction}"

    def chosen(self, **arguments: Any) -> NoTiling:
        """There is one way."""
        return NoTiling()

    def tilings(self) -> Iterable[NoTiling]:
        """None."""
        return ()

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch, which has no loop whose trips could be asked for."""
        from nkilib.experimental.loss import nll_loss_backward, nll_loss_forward
        from nkilib.simulator import profile, spec, using

        tensors = spec(self.shape, self.dtype), spec(self.shape[:1], "int32")
        scalar = spec((1,), "float32")
        with using(target=self.target):
            if not self.is_backward:
                return profile(nll_loss_forward[cores], *tensors, **arguments)
            given = {"total_weight_hbm": scalar, **arguments}
            return profile(nll_loss_backward[cores], *tensors, scalar, **given)
