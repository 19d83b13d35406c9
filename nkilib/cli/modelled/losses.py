# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The models of the losses with a registry entry, and of distillation from logits.

Each family is a :class:`LossKernels`. The signature of the kernel gives the names of a launch's tensors, and the
registry entry gives their sizes. Elementwise and row-wise losses share kernels with common loops
(:class:`ElementwiseKernels`, :class:`RowwiseKernels`). The others have loops of their own: margins
(:class:`MultiMarginKernels`, :class:`MultilabelMarginKernels`), :class:`NllLossKernels`, :class:`CtcKernels` and
:class:`DistillationKernels`. :data:`SEQUENCES` and :data:`LABELS` are default sizes of CTC.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .family import Family, LaterNames

if TYPE_CHECKING:
    from nkilib.experimental.loss.distillation.tiling import DistillationTiling
    from nkilib.experimental.loss.multi_margin.launch import MultiMarginTiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.profile import AskedTrips


_COLUMNS = (512, 1024, 2048, 4096, 8192)
_BUFFERS = (2, 3)
# The default sizes of a batch for connectionist temporal classification.
SEQUENCES, LABELS = 32, 64
_CHUNKS = (512, 1024, 2048, 3072, 4096)


def _names_of_losses(row: str) -> LaterNames:
    """Return the names of the losses whose registry entries are of the class named ``row``.

    The registry is imported only when the names are read.
    """

    def make() -> tuple[str, ...]:
        from nkilib.experimental.loss.registry import LOSSES

        return tuple(loss.name for loss in LOSSES if type(loss).__name__ == row)

    return LaterNames(make)


class TensorSize(NamedTuple):
    """The shape of a tensor that is passed to the kernel, and the name of its element type."""

    shape: tuple[int, ...]
    dtype: str


class NoSizes(NamedTuple):
    """The tiling of a kernel without sizes to choose: a named tuple without fields."""


@dataclass(frozen=True)
class LossKernels(Family):
    """The forward and backward kernels of a loss, modelled with the reduction ``"mean"``; this base class has no
    tiling.

    Attributes:
        ALWAYS: the names of optional tensors that every launch passes to the kernel.
    """

    SIZES: ClassVar[dict[str, str]] = {}
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    CHOOSER: ClassVar[str] = ""
    CONDITION: ClassVar[str] = ""
    ALWAYS: ClassVar[tuple[str, ...]] = ()

    @property
    def kernel(self) -> str:
        return f"{self.options.family}_{self.direction}"

    @property
    def row(self) -> Any:
        """The registry entry of the loss, which gives the sizes of a launch's tensors."""
        from nkilib.experimental.loss.registry import LOSSES

        (row,) = (loss for loss in LOSSES if loss.name == self.options.family)
        return row

    def chosen(self, **arguments: Any) -> Any:
        return NoSizes()

    def tilings(self) -> Iterable[Any]:
        return ()

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Return shape and type of a tensor of the launch, from the registry entry.

        Args:
            tensor: the name of the tensor, without ``_hbm``.
            arguments: the options of the kernel.
        """
        size = self.row.size_of(tensor, self.shape, arguments)
        return TensorSize(size.shape, size.dtype or self.dtype)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch. The launch gets no optional tensors but those in ``ALWAYS`` and in
        ``arguments``.
        """
        from nkilib.experimental import loss
        from nkilib.simulator import profile, spec, using

        kernel = getattr(loss, self.kernel)
        tensors: dict[str, Any] = {}
        for name, parameter in inspect.signature(kernel).parameters.items():
            if not name.endswith("_hbm"):
                continue
            tensor, is_optional = name.removesuffix("_hbm"), str(parameter.annotation).endswith("| None")
            if is_optional and tensor not in self.ALWAYS:
                tensors[name] = None
            else:
                tensors[name] = spec(*self.size_of(tensor, arguments))
        with using(target=self.target):
            return profile(kernel[cores], trips=trips, **{**tensors, **tiling._asdict(), **arguments})


class ElementwiseSizes(NamedTuple):
    """The tiling of an elementwise loss, named as the kernel's arguments; the kernel chooses a size that is None."""

    columns: int | None = None
    buffers: int | None = None


@dataclass(frozen=True)
class ElementwiseKernels(LossKernels):
    """The kernels of the elementwise losses, on tensors of one type.

    The backward computes only the gradient of the first tensor.
    """

    NAMES: ClassVar[Sequence[str]] = _names_of_losses("ElementwiseLoss")
    SIZES: ClassVar[dict[str, str]] = {"columns": "C", "buffers": "B"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "the kernel"
    CONDITION: ClassVar[str] = "with an elementwise or row-wise loss as --family: "
    WHICH: ClassVar[str] = "with an elementwise or row-wise loss as --family"

    def chosen(self, **arguments: Any) -> ElementwiseSizes:
        """Return a tiling in which every size is None."""
        return ElementwiseSizes()

    def tilings(self) -> set[ElementwiseSizes]:
        sizes = product(self.options.columns or _COLUMNS, self.options.buffers or _BUFFERS)
        return {ElementwiseSizes(*size) for size in sizes}


class RowwiseSizes(NamedTuple):
    """The tiling of a row-wise loss, named as the kernel's arguments; the kernel chooses a size that is None."""

    columns: int | None = None
    each: int | None = None
    buffers: int | None = None


@dataclass(frozen=True)
class RowwiseKernels(LossKernels):
    """The kernels of the row-wise losses, on rows of one type.

    The backward computes the gradients that the kernel computes by default.
    """

    NAMES: ClassVar[Sequence[str]] = _names_of_losses("RowwiseLoss")
    SIZES: ClassVar[dict[str, str]] = {"columns": "C", "each": "R", "buffers": "B"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "the kernel"
    CONDITION: ClassVar[str] = "with a row-wise loss as --family: "
    WHICH: ClassVar[str] = "with a row-wise loss as --family"

    def chosen(self, **arguments: Any) -> RowwiseSizes:
        """Return a tiling in which every size is None."""
        return RowwiseSizes()

    def tilings(self) -> set[RowwiseSizes]:
        columns = self.options.columns or [size for size in _COLUMNS if size <= self.options.vocab]
        sizes = product(columns or [None], self.options.each or [None], self.options.buffers or _BUFFERS)
        return {RowwiseSizes(*size) for size in sizes}


@dataclass(frozen=True)
class InChunks(LossKernels):
    """The kernels of a loss that process rows in chunks of ``chunk_size`` elements."""

    SIZES: ClassVar[dict[str, str]] = {"chunk_size": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)

    @abstractmethod
    def chosen(self, **arguments: Any) -> Any:
        """Return the tiling that the library chooses by default."""

    def tilings(self) -> set[Any]:
        chosen = self.chosen()
        return {chosen._replace(chunk_size=size) for size in self.options.chunk_size or _CHUNKS}


@dataclass(frozen=True)
class MultiMarginKernels(InChunks):
    """The kernels of the margin loss with one target per row."""

    NAMES: ClassVar[tuple[str, ...]] = ("multi_margin_loss",)
    CHOOSER: ClassVar[str] = "choose_multi_margin_tiling"
    CONDITION: ClassVar[str] = "with --family multi_margin_loss: "
    WHICH: ClassVar[str] = "with --family multi_margin_loss"

    def chosen(self, **arguments: Any) -> MultiMarginTiling:
        from nkilib.experimental.loss.multi_margin.launch import choose_multi_margin_tiling

        return choose_multi_margin_tiling(self.options.vocab)


@dataclass(frozen=True)
class MultilabelMarginKernels(LossKernels):
    """The kernels of the margin loss with several targets per row, at most as many as there are classes."""

    NAMES: ClassVar[tuple[str, ...]] = ("multilabel_margin_loss",)
    WHICH: ClassVar[str] = "with --family multilabel_margin_loss"


class NllForm(NamedTuple):
    """The tiling of an NLL kernel: a single flag.

    Attributes:
        streamed: whether the kernel streams the whole input or gradient, instead of only the elements at the targets.
    """

    streamed: bool


@dataclass(frozen=True)
class NllLossKernels(LossKernels):
    """The kernels of the negative log-likelihood, from log-probabilities."""

    NAMES: ClassVar[tuple[str, ...]] = ("nll_loss",)
    CHOOSER: ClassVar[str] = "the default"
    WHICH: ClassVar[str] = "with --family nll_loss"
    ALWAYS: ClassVar[tuple[str, ...]] = ("total_weight",)

    def chosen(self, **arguments: Any) -> NllForm:
        """Return the tiling that the argument ``streamed`` sets, or the default of the kernels."""
        from nkilib.experimental.loss.nll.few_classes import is_streamed
        from nkilib.experimental.loss.skeletons.indexed import Shape
        from nkilib.nki import nl
        from nkilib.simulator import using

        with using(target=self.target):
            default = is_streamed(Shape.of(self.shape), getattr(nl, self.dtype))
        asked = arguments.get("streamed")
        return NllForm(default if asked is None else asked)

    def tilings(self) -> Iterable[NllForm]:
        """Return both tilings. The kernel rejects the streamed one for many classes."""
        return NllForm(False), NllForm(True)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch; ``trips`` is not used, because all loop bounds of the kernel are known."""
        return super().profile(tiling, cores, **{**arguments, **tiling._asdict()})


@dataclass(frozen=True)
class CtcKernels(LossKernels):
    """The kernels of connectionist temporal classification, on a batch of sequences.

    ``--positions`` is the number of time steps.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("ctc_loss",)
    OPTIONS: ClassVar[tuple[str, ...]] = ("sequences", "labels")
    WHICH: ClassVar[str] = "with --family ctc_loss"
    ALWAYS: ClassVar[tuple[str, ...]] = ("targets",)

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Return shape and type of a tensor of a launch on log-probabilities [time steps, sequences, classes]."""
        steps, classes = self.shape
        log_probs = (steps, int(self.options.sequences or SEQUENCES), classes)
        size = self.row.size_of(tensor, log_probs, {"labels": int(self.options.labels or LABELS)})
        return TensorSize(size.shape, size.dtype or self.dtype)


@dataclass(frozen=True)
class DistillationKernels(InChunks):
    """The kernels of the divergence between the distributions of a student and a teacher, from the logits of both.

    Both logits have the same type.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("distillation",)
    SIZES: ClassVar[dict[str, str]] = {"chunk_size": "C", "partitions_per_position": "F"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "choose_distillation_tiling"
    CONDITION: ClassVar[str] = "with --family distillation: "
    WHICH: ClassVar[str] = "with --family distillation"

    @property
    def row(self) -> Any:
        """The module that gives the sizes of the tensors, in place of a registry entry: distillation has none, because
        PyTorch lacks it.
        """
        from nkilib.experimental.loss.distillation import host as sizes

        return sizes

    def chosen(self, **arguments: Any) -> DistillationTiling:
        from nkilib.experimental.loss.distillation.tiling import choose_distillation_tiling

        sizes = self.options.vocab, self._bytes_of_pair, self._is_mixed(arguments), self.is_backward
        return choose_distillation_tiling(*sizes, self.options.positions)

    def cut(self, asked: dict[str, int], **arguments: Any) -> DistillationTiling:
        """Return the default tiling with the sizes that are asked for, which are those of one partition a position
        unless a number of partitions is among them.
        """
        if not asked:
            return self.chosen(**arguments)
        return self._tiling(asked.get("partitions_per_position", 1), **arguments)._replace(**asked)

    def tilings(self) -> set[DistillationTiling]:
        """Return the tilings that ``tune`` compares."""
        all_parts = self.options.partitions_per_position or {1, self.chosen().partitions_per_position}
        sizes = product(all_parts, self.options.chunk_size or _CHUNKS)
        return {self._tiling(parts)._replace(chunk_size=chunk_size) for parts, chunk_size in sizes}

    def _tiling(self, parts: int, **arguments: Any) -> DistillationTiling:
        """Return the default tiling of a launch with a number of partitions a position."""
        from nkilib.experimental.loss.distillation.tiling import Form, tiling_of

        form = Form.of(self._is_mixed(arguments), self.is_backward)
        return tiling_of(self.options.vocab, self._bytes_of_pair, form, parts)

    def _is_mixed(self, arguments: dict[str, Any]) -> bool:
        """Return whether the launch computes a Jensen-Shannon divergence."""
        return 0 < arguments.get("beta", 0) < 1

    @property
    def _bytes_of_pair(self) -> int:
        return 2 * (2 if self.dtype == "bfloat16" else 4)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch; ``trips`` sets the iterations of the forward's loop over recomputed
        positions.
        """
        return super().profile(tiling, cores, None if self.is_backward else trips, **arguments)
