"""Kullback-Leibler divergence of log-probabilities from a target."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from .family import Family

if TYPE_CHECKING:
    from nkilib.experimental.loss import ElementwiseTiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips

_COLUMNS = (512, 1024, 2048, 4096, 8192)
_BUFFERS = (2, 3)


@dataclass(frozen=True)
class KlDivKernels(Family):
    """Of two tensors of one type, and in the backward the gradient of the input."""

    NAMES: ClassVar[tuple[str, ...]] = ("kl_div",)
    SIZES: ClassVar[dict[str, str]] = {"columns": "C", "buffers": "B"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "choose_elementwise_tiling"
    CONDITION: ClassVar[str] = "with --family kl_div: "
    WHICH: ClassVar[str] = "with --family kl_div"

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"kl_div_{self.direction}"

    def chosen(self, **arguments: Any) -> ElementwiseTiling:
        """The default of a launch without further options."""
        from nkilib.experimental.loss import choose_elementwise_tiling

        tensors = 3 if self.is_backward else 2
        return choose_elementwise_tiling(prod(self.shape), tensors * (4 if self.dtype == "float32" else 2))

    def tilings(self) -> set[ElementwiseTiling]:
        """To try."""
        from nkilib.experimental.loss import ElementwiseTiling

        sizes = product(self.options.columns or _COLUMNS, self.options.buffers or _BUFFERS)
        return {ElementwiseTiling(*each) for each in sizes}

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch, which has no loop whose trips could be asked for."""
        from nkilib.experimental.loss import kl_div_backward, kl_div_forward
        from nkilib.simulator import profile, spec, using

        tensor, further = spec(self.shape, self.dtype), [spec((1,), "float32")] if self.is_backward else []
        kernel = kl_div_backward if self.is_backward else kl_div_forward
        with using(target=self.target):
            return profile(kernel[cores], tensor, tensor, *further, **{**tiling._asdict(), **arguments})
