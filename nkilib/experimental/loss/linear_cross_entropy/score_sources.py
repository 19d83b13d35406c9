"""Where the backward takes tiles of logits from: products of X and W, or what the forward of the launch has kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.linear_cross_entropy.backward_plan import BackwardPlan
from nkilib.experimental.loss.linear_cross_entropy.blocks import Block, Span, cut
from nkilib.experimental.loss.linear_cross_entropy.gradient_tile import TURNS, TilePlace
from nkilib.experimental.loss.linear_cross_entropy.kept_logits import KeptLogits
from nkilib.experimental.loss.linear_cross_entropy.logits import LogitTiles
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS, Matrix, load_broadcast
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.rings import Ring
from nkilib.nki import nl


@dataclass(frozen=True)
class WeightPart:
    """A part of W^T of some classes, as large as a transfer is.

    Attributes:
        classes: which, in HBM.
        at: the first of them, counted in the block of classes.
        span: of these classes, or of the features where those are the rows in HBM.
    """

    classes: Block
    at: int
    span: Span


class ScoreSource(Protocol):
    """Gives the scores of one tile after another; z is the scale of the loss times them.

    Attributes:
        is_kept: they are there, so that Tensor has nothing to do for them.
        inputs: what is loaded for a tile of positions.
    """

    @property
    def is_kept(self) -> bool: ...

    @property
    def inputs(self) -> Ring: ...

    def weight_parts(self, classes: Block | None, at: int) -> list[WeightPart]:
        """What is to be loaded of W^T of some classes, the first of which is class ``at`` of their block."""

    def load_weight(self, part: WeightPart) -> None:
        """A part of W^T."""

    def load_bias(self, classes: Block, at: int) -> None:
        """Of some classes."""

    def load_input(self, classes: Block, at: int, first: int, rows: int) -> nl.NkiTensor:
        """What a tile of positions, ``rows`` from ``first`` on, needs for some classes, in the next buffer.

        The first of them is class ``at`` of their block.
        """

    def scores(self, number: int, input_sbuf: nl.NkiTensor, place: TilePlace) -> nl.NkiTensor:
        """float32 [rows, classes], tile ``number`` of the block, of what is loaded; they may be overwritten."""


@dataclass(frozen=True)
class ComputedScores:
    """Products of X^T, which streams, and W^T of the block of classes.

    Attributes:
        launch, plan: of the kernel.
        logits: that multiplies them.
        inputs: tiles of X^T, [128, tiles of features, 128].
        weight_sbuf: W^T of a block of classes, [128, tiles of features, classes].
        bias_sbuf: of a block, float32 [128, classes]; None without.
    """

    launch: LinearLaunch
    plan: BackwardPlan
    logits: LogitTiles
    inputs: Ring
    weight_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor | None

    @classmethod
    def make(
        cls, launch: LinearLaunch, options: Options, plan: BackwardPlan, banks_psum: list[nl.NkiTensor]
    ) -> ComputedScores:
        """Nothing is loaded yet; the products go into banks that others take at other times."""
        dtype, classes = launch.dtype, plan.class_tiles * PARTITIONS
        has_bias = launch.bias_hbm is not None

        def tiles_sbuf(is_needed: bool) -> list[nl.NkiTensor]:
            return Ring.of_sbuf(TURNS if is_needed else 0, (PARTITIONS, plan.classes_of_tile), nl.float32).tiles

        return cls(
            launch,
            plan,
            LogitTiles(
                launch.num_features,
                options.softcap,
                banks_psum,
                tiles_sbuf(has_bias),
                tiles_sbuf(options.softcap is not None),
            ),
            Ring.of_sbuf(plan.buffers.input_tiles, (PARTITIONS, plan.feature_tiles, PARTITIONS), dtype),
            nl.ndarray((PARTITIONS, plan.feature_tiles, classes), dtype=dtype, buffer=nl.sbuf),
            nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf) if has_bias else None,
        )

    @property
    def is_kept(self) -> bool:
        """They are computed."""
        return False

    def weight_parts(self, classes: Block | None, at: int) -> list[WeightPart]:
        """In the order in which the logits need them."""
        if classes is None or classes.size == 0:
            return []
        if self.launch.has_classes_first:
            pieces = cut(classes.size, PARTITIONS)
        else:
            step = div_ceil(self.plan.feature_tiles, self.plan.class_tiles) * PARTITIONS
            pieces = cut(self.launch.num_features, step)
        return [WeightPart(classes, at, span) for span in pieces]

    def load_weight(self, part: WeightPart) -> None:
        """A part of W^T."""
        weight, span = weight_of(self.launch, part.classes), part.span
        if self.launch.has_classes_first:
            at = part.at + span.first
            weight.rows_of(span.first, span.size).load_transposed(self.weight_sbuf[:, :, at : at + span.size])
            return
        tiles_sbuf = self.weight_sbuf[:, span.first // PARTITIONS : div_ceil(span.end, PARTITIONS), :]
        at_sbuf = tiles_sbuf[:, :, part.at : part.at + part.classes.size]
        weight.columns_of(span.first, span.size).load_transposed(at_sbuf)

    def load_bias(self, classes: Block, at: int) -> None:
        """Of some classes."""
        if self.launch.bias_hbm is not None and self.bias_sbuf is not None:
            load_broadcast(self.bias_sbuf[:, at : at + classes.size], classes.of(self.launch.bias_hbm))

    def load_input(self, classes: Block, at: int, first: int, rows: int) -> nl.NkiTensor:
        """A tile of X^T, for all classes."""
        tile_sbuf = self.inputs.next_tile()
        Matrix(self.launch.input_hbm).rows_of(first, rows).load_transposed(tile_sbuf)
        return tile_sbuf

    def scores(self, number: int, input_sbuf: nl.NkiTensor, place: TilePlace) -> nl.NkiTensor:
        """Of X^T."""
        columns = slice(place.classes.first, place.classes.end)
        bias_sbuf = None if self.bias_sbuf is None else self.bias_sbuf[:, columns]
        weight_sbuf = self.weight_sbuf[:, :, columns]
        return self.logits.scores(number, input_sbuf[:, :, 0 : place.rows], weight_sbuf, bias_sbuf)


@dataclass(frozen=True)
class KeptScores:
    """What the forward of the launch has kept, with bias and cap.

    Attributes:
        kept: where.
        inputs: tiles of scores, float32 [128, classes of a block].
    """

    kept: KeptLogits
    inputs: Ring

    @classmethod
    def make(cls, kept: KeptLogits, plan: BackwardPlan) -> KeptScores:
        """Nothing is loaded yet."""
        shape = (PARTITIONS, plan.class_tiles * PARTITIONS)
        return cls(kept, Ring.of_sbuf(plan.buffers.input_tiles, shape, nl.float32))

    @property
    def is_kept(self) -> bool:
        """They are."""
        return True

    def weight_parts(self, classes: Block | None, at: int) -> list[WeightPart]:
        """None."""
        return []

    def load_weight(self, part: WeightPart) -> None:
        """There is no part."""

    def load_bias(self, classes: Block, at: int) -> None:
        """It is in the scores."""

    def load_input(self, classes: Block, at: int, first: int, rows: int) -> nl.NkiTensor:
        """Some columns of a tile of scores."""
        tile_sbuf = self.inputs.next_tile()
        self.kept.load(tile_sbuf[0:rows, at : at + classes.size], first // PARTITIONS, classes)
        return tile_sbuf

    def scores(self, number: int, input_sbuf: nl.NkiTensor, place: TilePlace) -> nl.NkiTensor:
        """Some of them."""
        return input_sbuf[0 : place.rows, place.classes.first : place.classes.end]


def weight_of(launch: LinearLaunch, classes: Block) -> Matrix:
    """W of some classes, [classes, features]."""
    has_classes_first = launch.has_classes_first
    return Matrix(classes.of(launch.weight_hbm, 0 if has_classes_first else 1), not has_classes_first)
