"""Negative log-likelihood of log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .family import Family

if TYPE_CHECKING:
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips


class Form(NamedTuple):
    """How the input is read, or the gradient written: streamed, or gathered and scattered at the targets."""

    streamed: bool


@dataclass(frozen=True)
class NllLossKernels(Family):
    """Their mean."""

    NAMES: ClassVar[tuple[str, ...]] = ("nll_loss",)
    SIZES: ClassVar[dict[str, str]] = {}
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    CHOOSER: ClassVar[str] = "the default"
    CONDITION: ClassVar[str] = ""
    WHICH: ClassVar[str] = "with --family nll_loss"

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"nll_loss_{self.direction}"

    def chosen(self, **arguments: Any) -> Form:
        """The form that is asked for, or the one that the kernels take by themselves."""
        from nkilib.experimental.loss.nll.class_tiles import is_streamed
        from nkilib.experimental.loss.skeletons.indexed.positions import Shape
        from nkilib.nki import nl
        from nkilib.simulator import using

        with using(target=self.target):
            default = is_streamed(Shape.of(self.shape), getattr(nl, self.dtype))
        asked = arguments.get("streamed")
        return Form(default if asked is None else asked)

    def tilings(self) -> Iterable[Form]:
        """Both forms; many classes are not streamed."""
        return Form(False), Form(True)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch in the form of ``tiling``, which has no loop whose trips could be asked for."""
        from nkilib.experimental.loss import nll_loss_backward, nll_loss_forward
        from nkilib.simulator import profile, spec, using

        tensors = spec(self.shape, self.dtype), spec(self.shape[:1], "int32")
        scalar, options = spec((1,), "float32"), {**arguments, **tiling._asdict()}
        with using(target=self.target):
            if not self.is_backward:
                return profile(nll_loss_forward[cores], *tensors, **options)
            given = {"total_weight_hbm": scalar, **options}
            return profile(nll_loss_backward[cores], *tensors, scalar, **given)
