"""Negative log-likelihood of log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from .loss import SCALAR, LossKernels, TensorSize


class Form(NamedTuple):
    """How the input is read, or the gradient written: streamed, or gathered and scattered at the targets."""

    streamed: bool


@dataclass(frozen=True)
class NllLossKernels(LossKernels):
    """Their mean."""

    NAMES: ClassVar[tuple[str, ...]] = ("nll_loss",)
    CHOOSER: ClassVar[str] = "the default"
    WHICH: ClassVar[str] = "with --family nll_loss"
    ALWAYS: ClassVar[tuple[str, ...]] = ("total_weight",)

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

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Log-probabilities, a target a position, and the sum of the weights."""
        if tensor == "total_weight":
            return SCALAR
        return TensorSize(self.shape[:1], "int32") if tensor == "targets" else self.matrix
