"""Margins between target classes and the others: of one target a row, and of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .loss import LossKernels, TensorSize

if TYPE_CHECKING:
    from nkilib.experimental.loss.multi_margin.host.tiling import MultiMarginTiling

_CHUNKS = (512, 1024, 2048, 3072, 4096)


@dataclass(frozen=True)
class MultiMarginKernels(LossKernels):
    """A target a row."""

    NAMES: ClassVar[tuple[str, ...]] = ("multi_margin_loss",)
    SIZES: ClassVar[dict[str, str]] = {"chunk_size": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "choose_multi_margin_tiling"
    CONDITION: ClassVar[str] = "with --family multi_margin_loss: "
    WHICH: ClassVar[str] = "with --family multi_margin_loss"

    def chosen(self, **arguments: Any) -> MultiMarginTiling:
        """The default."""
        from nkilib.experimental.loss.multi_margin.host.tiling import choose_multi_margin_tiling

        return choose_multi_margin_tiling(self.options.vocab)

    def tilings(self) -> set[MultiMarginTiling]:
        """To try."""
        from nkilib.experimental.loss.multi_margin.host.tiling import MultiMarginTiling

        return {MultiMarginTiling(each) for each in self.options.chunk_size or _CHUNKS}

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Scores, and a target a row."""
        return TensorSize(self.shape[:1], "int32") if tensor == "targets" else self.matrix


@dataclass(frozen=True)
class MultilabelMarginKernels(LossKernels):
    """As many targets a row as classes at most."""

    NAMES: ClassVar[tuple[str, ...]] = ("multilabel_margin_loss",)
    WHICH: ClassVar[str] = "with --family multilabel_margin_loss"

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Scores and targets."""
        return TensorSize(self.shape, "int32") if tensor == "targets" else self.matrix
