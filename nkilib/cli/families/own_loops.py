# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses whose kernels have loops of their own, instead of those of the elementwise or the row-wise skeleton.

They are the negative log-likelihood loss, the margin losses of classes, connectionist temporal classification, and
distillation from logits. Each has a registry entry with the sizes of its tensors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .loss import SizedKernels, TensorSize

if TYPE_CHECKING:
    from nkilib.experimental.loss.distillation.host.tiling import DistillationTiling
    from nkilib.experimental.loss.multi_margin.host.tiling import MultiMarginTiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips

SEQUENCES, LABELS = 32, 64
_CHUNKS = (512, 1024, 2048, 3072, 4096)


@dataclass(frozen=True)
class InChunks(SizedKernels):
    """A loss whose kernels process rows in chunks of ``chunk_size`` elements."""

    SIZES: ClassVar[dict[str, str]] = {"chunk_size": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)

    @abstractmethod
    def chosen(self, **arguments: Any) -> Any:
        """Return the default tiling."""

    def tilings(self) -> set[Any]:
        """Return the tilings to try."""
        chosen = self.chosen()
        return {chosen._replace(chunk_size=size) for size in self.options.chunk_size or _CHUNKS}


@dataclass(frozen=True)
class MultiMarginKernels(InChunks):
    """A margin loss with one target per row."""

    NAMES: ClassVar[tuple[str, ...]] = ("multi_margin_loss",)
    CHOOSER: ClassVar[str] = "choose_multi_margin_tiling"
    CONDITION: ClassVar[str] = "with --family multi_margin_loss: "
    WHICH: ClassVar[str] = "with --family multi_margin_loss"

    def chosen(self, **arguments: Any) -> MultiMarginTiling:
        """Return the default tiling."""
        from nkilib.experimental.loss.multi_margin.host.tiling import choose_multi_margin_tiling

        return choose_multi_margin_tiling(self.options.vocab)


@dataclass(frozen=True)
class MultilabelMarginKernels(SizedKernels):
    """A margin loss with at most as many targets per row as there are classes."""

    NAMES: ClassVar[tuple[str, ...]] = ("multilabel_margin_loss",)
    WHICH: ClassVar[str] = "with --family multilabel_margin_loss"


class Form(NamedTuple):
    """The form of an NLL kernel: whether it streams the whole input or gradient, or only gathers and scatters the
    elements at the targets.
    """

    streamed: bool


@dataclass(frozen=True)
class NllLossKernels(SizedKernels):
    """Negative log-likelihood from log-probabilities."""

    NAMES: ClassVar[tuple[str, ...]] = ("nll_loss",)
    CHOOSER: ClassVar[str] = "the default"
    WHICH: ClassVar[str] = "with --family nll_loss"
    ALWAYS: ClassVar[tuple[str, ...]] = ("total_weight",)

    def chosen(self, **arguments: Any) -> Form:
        """Return the requested form, or the kernels' default form."""
        from nkilib.experimental.loss.nll.class_tiles import is_streamed
        from nkilib.experimental.loss.skeletons.indexed.positions import Shape
        from nkilib.nki import nl
        from nkilib.simulator import using

        with using(target=self.target):
            default = is_streamed(Shape.of(self.shape), getattr(nl, self.dtype))
        asked = arguments.get("streamed")
        return Form(default if asked is None else asked)

    def tilings(self) -> Iterable[Form]:
        """Return both forms. The kernel does not accept the streamed form for many classes."""
        return Form(False), Form(True)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Profile a launch in the form of ``tiling``. It has no loop that ``--trips`` could name."""
        return super().profile(tiling, cores, **{**arguments, **tiling._asdict()})


@dataclass(frozen=True)
class CtcKernels(SizedKernels):
    """Connectionist temporal classification of a batch of sequences; ``--positions`` is the number of steps."""

    NAMES: ClassVar[tuple[str, ...]] = ("ctc_loss",)
    OPTIONS: ClassVar[tuple[str, ...]] = ("sequences", "labels")
    WHICH: ClassVar[str] = "with --family ctc_loss"
    ALWAYS: ClassVar[tuple[str, ...]] = ("targets",)

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Return the size in the registry entry, for log-probabilities [T, N, C]."""
        steps, classes = self.shape
        log_probs = (steps, int(self.options.sequences or SEQUENCES), classes)
        size = self.row.size_of(tensor, log_probs, {"labels": int(self.options.labels or LABELS)})
        return TensorSize(size.shape, size.dtype or self.dtype)


@dataclass(frozen=True)
class DistillationKernels(InChunks):
    """The divergence of a student's distribution from a teacher's, from the logits of both, which have one type."""

    NAMES: ClassVar[tuple[str, ...]] = ("distillation",)
    CHOOSER: ClassVar[str] = "choose_distillation_tiling"
    CONDITION: ClassVar[str] = "with --family distillation: "
    WHICH: ClassVar[str] = "with --family distillation"

    @property
    def row(self) -> Any:
        """The module that gives the sizes of the tensors, in place of a registry entry: distillation is not a loss of
        PyTorch, and so not in the registry.
        """
        from nkilib.experimental.loss.distillation.host import sizes

        return sizes

    def chosen(self, **arguments: Any) -> DistillationTiling:
        """Return the default tiling."""
        from nkilib.experimental.loss.distillation.host.tiling import choose_distillation_tiling

        of_pair = 2 * (4 if self.dtype == "float32" else 2)
        is_mixed = 0 < arguments.get("beta", 0) < 1
        return choose_distillation_tiling(self.options.vocab, of_pair, is_mixed, self.is_backward)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Profile a launch; ``trips`` are the iterations of the forward's loop over recomputed positions."""
        return super().profile(tiling, cores, None if self.is_backward else trips, **arguments)
