# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The models of the kernels for the output layer of a language model.

- From logits: :class:`SoftmaxKernels` and :class:`LogitsKernels`, which is cross-entropy.
- From hidden states and output weights: :class:`LinearKernels`, which is cross-entropy, :class:`TokenScoreKernels` and
  :class:`LinearDistillationKernels`.

The method ``profile`` of a class calls the library's function that profiles a launch of given sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from .family import Family

if TYPE_CHECKING:
    from nkilib.experimental.loss import LinearTiling, Tiling
    from nkilib.experimental.softmax import SoftmaxTiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.profile import AskedTrips

AXES = {"last": -1, "first": 0}
LAYOUTS = ("vd", "dv")

# What is tried: chunks of equal size, up to these numbers of them ...
_MOST_CHUNKS_OF_SOFTMAX = 8
_MOST_CHUNKS_OF_LOGITS = 16
# ... and, from hidden states, blocks of positions and of classes.
_POSITION_BLOCKS = (512, 1024, 2048, 4096)
_CLASS_BLOCKS = {"forward": (256, 384, 512), "backward": (384, 512, 768, 1024, 1280, 1536)}
_DISTILLATION_POSITION_BLOCKS = (256, 512, 1024, 2048)
_DISTILLATION_CLASS_BLOCKS = {
    "forward": (256, 384, 512),
    "mixture": (256, 384, 512),
    "backward": (256, 384, 512, 768, 1024),
}
# Options that the chooser of a tiling for distillation takes; any other option makes the launch an extended one.
_CHOOSER_OPTIONS = ("beta", "memory_limit")


@dataclass(frozen=True)
class SoftmaxKernels(Family):
    """The kernels of softmax and log-softmax of a matrix, along its last or its first axis."""

    NAMES: ClassVar[tuple[str, ...]] = ("softmax", "log_softmax")
    SIZES: ClassVar[dict[str, str]] = {"chunk_size": "C", "partitions_per_row": "F"}
    OPTIONS: ClassVar[tuple[str, ...]] = (*SIZES, "axis")
    CHOOSER: ClassVar[str] = "choose_softmax_tiling"
    CONDITION: ClassVar[str] = "with --family softmax: "
    WHICH: ClassVar[str] = "with --family softmax or log_softmax"

    @property
    def kernel(self) -> str:
        return f"{self.options.family}_{self.direction}"

    def chosen(self, **arguments: Any) -> SoftmaxTiling:
        from nkilib.experimental.softmax import choose_softmax_tiling
        from nkilib.experimental.softmax.tensors import Kind

        kind = Kind(self.options.family)
        return choose_softmax_tiling(self.shape, self._axis, self.dtype, self.direction, kind=kind)

    def tilings(self) -> set[SoftmaxTiling]:
        from nkilib.core.hardware import div_ceil
        from nkilib.experimental.softmax import SoftmaxTiling

        chosen, size = self.chosen().partitions_per_row, self.shape[self._axis]
        result = set()
        for parts in self.options.partitions_per_row or {None, chosen}:
            columns = div_ceil(size, parts or 1)
            equal = {div_ceil(columns, chunks) for chunks in range(1, _MOST_CHUNKS_OF_SOFTMAX + 1)}
            result |= {SoftmaxTiling(chunk_size, parts) for chunk_size in self.options.chunk_size or equal}
        return result

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch; ``trips`` is not used, because all loop bounds of the kernel are known."""
        from nkilib.experimental.softmax.profiling import profile_softmax_launch
        from nkilib.experimental.softmax.tensors import Kind

        kind, keywords = Kind(self.options.family), {**tiling._asdict(), **arguments}
        return profile_softmax_launch(
            self.shape, self._axis, self.dtype, kind, self.direction, target=self.target, cores=cores, **keywords
        )

    @property
    def _axis(self) -> int:
        return AXES[self.options.axis or "last"]


@dataclass(frozen=True)
class LogitsKernels(Family):
    """The kernels of cross-entropy from logits, plain and extended."""

    NAMES: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    SIZES: ClassVar[dict[str, str]] = {
        "positions_per_batch": "P",
        "chunk_size": "C",
        "partitions_per_position": "F",
        "positions_per_partition": "R",
    }
    OPTIONS: ClassVar[tuple[str, ...]] = (*SIZES, "extended")
    CHOOSER: ClassVar[str] = "choose_tiling"
    CONDITION: ClassVar[str] = ""
    WHICH: ClassVar[str] = "without --features and --family"

    @property
    def kernel(self) -> str:
        return f"{'extended_' if self.options.extended else ''}cross_entropy_{self.direction}"

    @property
    def takes_options(self) -> bool:
        return bool(self.options.extended)

    def chosen(self, **arguments: Any) -> Tiling:
        from nkilib.experimental.loss import choose_tiling

        return choose_tiling(*self._launch, self.target, extended=self.options.extended)

    def cut(self, asked: dict[str, int], **arguments: Any) -> Tiling:
        """Return the default tiling with some sizes replaced.

        If ``asked`` is not empty, one position lies on one partition, unless ``asked`` sets another layout.
        """
        usual = {"partitions_per_position": 1, "positions_per_partition": 1} if asked else {}
        return self.chosen(**arguments)._replace(**usual)._replace(**asked)

    def tilings(self) -> set[Tiling]:
        """Return the tilings that ``tune`` compares, with one position per partition unless the command line sets a
        layout.
        """
        from nkilib.core.hardware import div_ceil
        from nkilib.experimental.loss import Tiling

        options = self.options
        equal = {div_ceil(options.vocab, chunks) for chunks in range(1, _MOST_CHUNKS_OF_LOGITS + 1)}
        sizes = product(
            options.positions_per_batch or [128],
            options.chunk_size or equal,
            options.partitions_per_position or [1],
            options.positions_per_partition or [1],
        )
        return {Tiling(*size) for size in sizes}

    def profile(self, tiling: Tiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
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


@dataclass(frozen=True)
class LinearKernels(Family):
    """The kernels of cross-entropy from hidden states and output weights."""

    NAMES: ClassVar[tuple[str, ...]] = ("linear_cross_entropy",)
    SIZES: ClassVar[dict[str, str]] = {"position_block": "P", "class_block": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = (*SIZES, "features", "weight_layout")
    CHOOSER: ClassVar[str] = "choose_linear_tiling"
    CONDITION: ClassVar[str] = "with --features: "
    WHICH: ClassVar[str] = "with --features"

    @property
    def refusal(self) -> str | None:
        if not self.options.features:
            return "argument --features: is required for linear_cross_entropy"
        return self._no_mixture

    @property
    def kernel(self) -> str:
        return f"linear_cross_entropy_{self.direction}"

    def chosen(self, **arguments: Any) -> LinearTiling:
        from nkilib.experimental.loss import choose_linear_tiling

        return choose_linear_tiling(*self._launch, target=self.target, weight_layout=self._layout)

    def tilings(self) -> set[LinearTiling]:
        from nkilib.experimental.loss import LinearTiling

        classes = _CLASS_BLOCKS.get(self.direction, _CLASS_BLOCKS["backward"])
        sizes = product(self.options.position_block or _POSITION_BLOCKS, self.options.class_block or classes)
        return {LinearTiling(*size) for size in sizes}

    def profile(self, tiling: LinearTiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch; ``trips`` is not used, because all loop bounds of the kernel are known."""
        from nkilib.experimental.loss import LinearTiling
        from nkilib.experimental.loss.profiling import profile_linear_launch

        target, cut = self.target, LinearTiling(*tiling)
        return profile_linear_launch(
            *self._launch, cut, target=target, cores=cores, weight_layout=self._layout, **arguments
        )

    @property
    def _layout(self) -> str:
        return self.options.weight_layout or LAYOUTS[0]

    @property
    def _launch(self) -> tuple[int, int, int, str, str]:
        options = self.options
        return options.positions, options.features, options.vocab, self.dtype, self.direction


@dataclass(frozen=True)
class TokenScoreKernels(LinearKernels):
    """The kernels of the log-probabilities of several target ids per position, from hidden states and output
    weights.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("linear_token_scores",)
    OPTIONS: ClassVar[tuple[str, ...]] = (*LinearKernels.OPTIONS, "ids")
    WHICH: ClassVar[str] = "with --family linear_token_scores"

    @property
    def refusal(self) -> str | None:
        if self.direction == "forward_backward":
            return "argument --direction: forward_backward is for linear cross-entropy only: leave out --family"
        if not self.options.features:
            return "argument --features: is required for linear_token_scores"
        return self._no_mixture

    @property
    def kernel(self) -> str:
        return f"linear_token_scores_{self.direction}"

    def chosen(self, **arguments: Any) -> LinearTiling:
        from nkilib.experimental.loss import choose_linear_tiling

        return choose_linear_tiling(*self._launch, target=self.target, weight_layout=self._layout, ids=self._ids)

    def profile(self, tiling: LinearTiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch; ``trips`` is not used, because all loop bounds of the kernel are known."""
        from nkilib.experimental.loss import LinearTiling
        from nkilib.experimental.loss.profiling import profile_token_scores_launch

        positions, features, classes, dtype, direction = self._launch
        keywords = {"target": self.target, "cores": cores, "weight_layout": self._layout, **arguments}
        return profile_token_scores_launch(
            positions, features, classes, self._ids, dtype, direction, LinearTiling(*tiling), **keywords
        )

    @property
    def _ids(self) -> int:
        return self.options.ids or 1


@dataclass(frozen=True)
class LinearDistillationKernels(LinearKernels):
    """The kernels of the divergence between a student and a teacher, from hidden states and output weights of both.

    Both weights have the same layout.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("linear_distillation",)
    OPTIONS: ClassVar[tuple[str, ...]] = (*LinearKernels.OPTIONS, "teacher_features")
    CHOOSER: ClassVar[str] = "choose_linear_distillation_tiling"
    WHICH: ClassVar[str] = "with --family linear_distillation"

    @property
    def refusal(self) -> str | None:
        if self.direction == "forward_backward":
            return "argument --direction: forward_backward is for linear cross-entropy only: leave out --family"
        for name in ("features", "teacher_features"):
            if not getattr(self.options, name):
                return f"argument --{name.replace('_', '-')}: is required for linear_distillation"
        return None

    @property
    def kernel(self) -> str:
        return f"linear_distillation_{self.direction}"

    def chosen(self, **arguments: Any) -> LinearTiling:
        from nkilib.experimental.loss import choose_linear_distillation_tiling

        keywords = {name: arguments[name] for name in _CHOOSER_OPTIONS if name in arguments}
        return choose_linear_distillation_tiling(
            *self._sizes,
            target=self.target,
            student_weight_layout=self._layout,
            teacher_weight_layout=self._layout,
            extended=bool(arguments.keys() - set(_CHOOSER_OPTIONS)),
            **keywords,
        )

    def tilings(self) -> set[LinearTiling]:
        from nkilib.experimental.loss import LinearTiling

        classes = self.options.class_block or _DISTILLATION_CLASS_BLOCKS[self.direction]
        return {
            LinearTiling(*size)
            for size in product(self.options.position_block or _DISTILLATION_POSITION_BLOCKS, classes)
        }

    def profile(self, tiling: LinearTiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch; ``trips`` is not used, because all loop bounds of the kernel are known."""
        from nkilib.experimental.loss import LinearTiling
        from nkilib.experimental.loss.profiling import profile_linear_distillation_launch

        layouts = {f"{name}_weight_layout": self._layout for name in ("student", "teacher")}
        keywords = {"target": self.target, "cores": cores, **layouts, **arguments}
        return profile_linear_distillation_launch(*self._sizes, LinearTiling(*tiling), **keywords)

    @property
    def _sizes(self) -> tuple[int, int, int, int, str, str]:
        options = self.options
        sizes = options.positions, options.features, options.teacher_features, options.vocab
        return (*sizes, self.dtype, self.direction)
