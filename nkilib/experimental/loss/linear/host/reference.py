# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""An output layer in float64: logits and gradients in blocks of positions, so that no [N, V] array is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss.cross_entropy.host.reference import Float64Array

# Elements of a block of logits: 16 MiB in float64.
_BLOCK_ELEMENTS = 1 << 21
# A layer whose logits have more elements, 64 MiB in float64, keeps none of its products.
_KEPT_ELEMENTS = 1 << 23
EVERY_CLASS: Final = slice(None)


class LinearGradients(NamedTuple):
    """The float64 gradients of input, [N, D], weight, in its layout, and bias, [V]; or the bounds on their errors."""

    input: Float64Array
    weight: Float64Array
    bias: Float64Array


class GradientRows(NamedTuple):
    """The gradient of the logits of R positions.

    Attributes:
        rows: the positions.
        gradient: G, [R, V].
        off: how far G may be off before it is rounded, [R, V].
    """

    rows: slice
    gradient: Float64Array
    off: Float64Array


class _Product(NamedTuple):
    """A product of some positions: "logits" or "magnitudes"."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class OutputLayer:
    """Hidden states, output weights and bias of a model.

    The products of a small layer are computed once for reference and bounds: nothing may change its arrays after the
    first use.

    Attributes:
        input: X, [N, D], of any float type.
        weight: W, [V, D], or [D, V] by ``weight_layout``.
        bias: [V], or None.
        weight_layout: ``"vd"`` or ``"dv"``.
    """

    input: npt.NDArray[Any]
    weight: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None = None
    weight_layout: str = "vd"

    @property
    def classes_first(self) -> Float64Array:
        """The weight W as [V, D]."""
        weight = self.weight.astype(np.float64)
        return weight if self.weight_layout == "vd" else weight.T

    @property
    def vocab_size(self) -> int:
        """The number of classes V."""
        return int(self.weight.shape[0 if self.weight_layout == "vd" else 1])

    def row_blocks(self) -> Iterator[slice]:
        """Yield slices that cover the positions in order."""
        step = max(1, _BLOCK_ELEMENTS // self.vocab_size)
        for start in range(0, len(self.input), step):
            yield slice(start, min(start + step, len(self.input)))

    def logits_of(self, rows: slice, weight: Float64Array) -> Float64Array:
        """Return y = X W^T + b of some positions, read-only; ``weight`` is ``classes_first``."""

        def computed() -> Float64Array:
            logits: Float64Array = self.input[rows].astype(np.float64) @ weight.T
            return logits if self.bias is None else logits + self.bias.astype(np.float64)

        return self._once("logits", rows, computed)

    def magnitudes_of(self, rows: slice, weight: Float64Array) -> Float64Array:
        """Return |X| |W|^T of some positions, read-only; ``weight`` is ``classes_first``."""
        return self._once("magnitudes", rows, lambda: np.abs(self.input[rows].astype(np.float64)) @ np.abs(weight).T)

    def _once(self, name: str, rows: slice, compute: Callable[[], Float64Array]) -> Float64Array:
        """Return the product of some positions, which a small layer keeps."""
        first, last, _ = rows.indices(len(self.input))
        key = _Product(name, first, last)
        if key not in self._kept:
            result = compute()
            result.flags.writeable = False
            if len(self.input) * self.vocab_size > _KEPT_ELEMENTS:
                return result
            self._kept[key] = result
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[_Product, Float64Array]:
        """The products that were computed."""
        return {}

    def gradients(
        self,
        blocks: Iterable[tuple[slice, Float64Array]],
        weight: Float64Array,
        classes: slice = EVERY_CLASS,
    ) -> LinearGradients:
        """Return dX = G W, dW = G^T X and db = sum G, from blocks of positions.

        Args:
            blocks: blocks of R positions and their G, [R, V]; together they cover all positions.
            weight: the weight, ``classes_first``.
            classes: the classes of a vocabulary shard: its part of dX and its own dW and db are returned.
        """
        shard_weight = weight[classes]
        of_input = np.empty(self.input.shape, np.float64)
        of_weight, of_bias = np.zeros_like(shard_weight), np.zeros(len(shard_weight))
        for rows, whole in blocks:
            gradient = whole[:, classes]
            of_input[rows] = gradient @ shard_weight
            of_weight += gradient.T @ self.input[rows].astype(np.float64)
            of_bias += gradient.sum(axis=0)
        return LinearGradients(of_input, of_weight if self.weight_layout == "vd" else of_weight.T, of_bias)
