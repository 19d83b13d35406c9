"""The kernels of this library that commands model: what tells them apart, their tilings, and their profiles.

Cross-entropy of logits, and with ``--features`` linear cross-entropy, of hidden states and output weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from .launch_arguments import DTYPES, positive

if TYPE_CHECKING:
    from nkilib.experimental.loss import LinearTiling, Tiling
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips

    AnyTiling = Tiling | LinearTiling

_MOST_EQUAL_CHUNKS = 16
_DIRECTIONS = ("forward", "backward", "forward_backward")
_LAYOUTS = ("vd", "dv")
_POSITION_BLOCKS = (512, 1024, 2048, 4096)
_CLASS_BLOCKS = {"forward": (256, 384, 512), "backward": (384, 512, 768, 1024, 1280, 1536)}


def add_family_arguments(command: argparse.ArgumentParser, several: bool) -> None:
    """What tells the kernels apart, and how a launch is cut up; ``several``: of each size any number, to try."""
    command.add_argument("--extended", action="store_true", help="the extended kernel; --arg gives its options")
    command.add_argument(
        "--features",
        type=positive,
        metavar="D",
        help="linear cross-entropy, of hidden states [N, D] and weights [V, D]; --arg gives its options",
    )
    command.add_argument("--weight-layout", choices=_LAYOUTS, help="with --features: W is [V, D] (default) or [D, V]")
    for family in (LogitsKernels, LinearKernels):
        for size, letter in family.SIZES.items():
            option, condition = f"--{size.replace('_', '-')}", family.CONDITION
            if several:
                command.add_argument(option, type=positive, nargs="+", metavar=letter, help=f"{condition}to try")
            else:
                chosen = f"{condition}default: that of {family.CHOOSER}"
                command.add_argument(option, type=positive, metavar=letter, help=chosen)


@dataclass(frozen=True)
class LogitsKernels:
    """Cross-entropy of logits."""

    SIZES: ClassVar[dict[str, str]] = {"positions_per_batch": "P", "chunk_size": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = (*SIZES, "extended")
    CHOOSER: ClassVar[str] = "choose_tiling"
    CONDITION: ClassVar[str] = ""

    options: argparse.Namespace

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"{'extended_' if self.options.extended else ''}cross_entropy_{self._direction}"

    @property
    def takes_options(self) -> bool:
        """Whether ``--arg`` gives some."""
        return bool(self.options.extended)

    @property
    def refusal(self) -> str | None:
        """Why such a launch is none."""
        if self._direction == _DIRECTIONS[2]:
            return "argument --direction: forward_backward is of linear cross-entropy: add --features"
        if self.options.dtype == "float16":
            return "argument --dtype: float16 is of linear cross-entropy: add --features"
        return None

    def chosen(self) -> AnyTiling:
        """The default."""
        from nkilib.experimental.loss import choose_tiling

        return choose_tiling(*self._launch, self.options.target or "trn2", extended=self.options.extended)

    def tilings(self) -> set[AnyTiling]:
        """To try."""
        from nkilib.core.tiling import div_ceil
        from nkilib.experimental.loss import Tiling

        equal = {div_ceil(self.options.vocab, chunks) for chunks in range(1, _MOST_EQUAL_CHUNKS + 1)}
        sizes = product(self.options.positions_per_batch or [128], self.options.chunk_size or equal)
        return {Tiling(*each) for each in sizes}

    def profile(self, tiling: AnyTiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch."""
        from nkilib.experimental.loss import Tiling
        from nkilib.experimental.loss.profiling import profile_launch

        target, is_extended = self.options.target or "trn2", self.options.extended
        cut = Tiling(*tiling)
        return profile_launch(
            *self._launch, cut, target=target, cores=cores, extended=is_extended, trips=trips, **arguments
        )

    @property
    def _direction(self) -> str:
        return self.options.direction or _DIRECTIONS[0]

    @property
    def _launch(self) -> tuple[int, int, str, str]:
        return self.options.positions, self.options.vocab, self.options.dtype or DTYPES[0], self._direction


@dataclass(frozen=True)
class LinearKernels:
    """Cross-entropy of hidden states and output weights."""

    SIZES: ClassVar[dict[str, str]] = {"position_block": "P", "class_block": "C"}
    OPTIONS: ClassVar[tuple[str, ...]] = (*SIZES, "features", "weight_layout")
    CHOOSER: ClassVar[str] = "choose_linear_tiling"
    CONDITION: ClassVar[str] = "with --features: "

    options: argparse.Namespace
    takes_options: ClassVar[bool] = True
    refusal: ClassVar[str | None] = None

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"linear_cross_entropy_{self._direction}"

    def chosen(self) -> AnyTiling:
        """The default."""
        from nkilib.experimental.loss import choose_linear_tiling

        return choose_linear_tiling(*self._launch, target=self.options.target or "trn2", weight_layout=self._layout)

    def tilings(self) -> set[AnyTiling]:
        """To try."""
        from nkilib.experimental.loss import LinearTiling

        classes = _CLASS_BLOCKS.get(self._direction, _CLASS_BLOCKS["backward"])
        sizes = product(self.options.position_block or _POSITION_BLOCKS, self.options.class_block or classes)
        return {LinearTiling(*each) for each in sizes}

    def profile(self, tiling: AnyTiling, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch, which has no loop whose trips could be asked for."""
        from nkilib.experimental.loss import LinearTiling
        from nkilib.experimental.loss.profiling import profile_linear_launch

        target, cut = self.options.target or "trn2", LinearTiling(*tiling)
        return profile_linear_launch(
            *self._launch, cut, target=target, cores=cores, weight_layout=self._layout, **arguments
        )

    @property
    def _direction(self) -> str:
        return self.options.direction or _DIRECTIONS[0]

    @property
    def _layout(self) -> str:
        return self.options.weight_layout or _LAYOUTS[0]

    @property
    def _launch(self) -> tuple[int, int, int, str, str]:
        options = self.options
        return options.positions, options.features, options.vocab, options.dtype or DTYPES[0], self._direction


Kernels = LogitsKernels | LinearKernels
FAMILIES: Sequence[type[LogitsKernels] | type[LinearKernels]] = (LogitsKernels, LinearKernels)


def kernels_of(options: argparse.Namespace) -> Kernels:
    """Those that the command line is about; ends the process if it is about both, or about a launch that is none."""
    family = LinearKernels if options.features else LogitsKernels
    for other in FAMILIES:
        foreign = [name for name in other.OPTIONS if getattr(options, name)] if other is not family else []
        if foreign:
            option, which = f"--{foreign[0].replace('_', '-')}", "with" if other is LinearKernels else "without"
            options.refuse(f"argument {option}: is for kernels {which} --features")
    found = family(options)
    if found.refusal:
        options.refuse(found.refusal)
    return found
