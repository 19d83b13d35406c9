"""What the kernels should give, in float64 from the very inputs that they get: numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MultilabelMarginTruth:
    """Of every row, in float64.

    Attributes:
        hinges: relu(1 - (x_t - x_j)) by rows, targets of the list and classes; 0 at targets, and behind the end of the
            list. Of each row an array [targets, C].
        targets: of each row.
        classes: C.
    """

    hinges: list[Float64Array]
    targets: list[npt.NDArray[Any]]
    classes: int

    @classmethod
    def of(cls, input: npt.NDArray[Any], targets: npt.NDArray[Any]) -> MultilabelMarginTruth:
        """From the arguments of ``torch.nn.functional.multilabel_margin_loss``, but for targets that are int32."""
        x, hinges, lists = input.astype(np.float64), [], []
        for row, listed in zip(x, targets, strict=True):
            (ends,) = np.nonzero(listed < 0)
            wanted = listed[: ends[0] if ends.size else len(listed)]
            of_row = np.maximum(1.0 - row[wanted][:, None] + row[None, :], 0.0)
            of_row[:, wanted] = 0.0
            hinges.append(of_row)
            lists.append(wanted)
        return cls(hinges, lists, x.shape[1])

    def losses(self) -> Float64Array:
        """[N]: ``F.multilabel_margin_loss(input, target, reduction="none")``."""
        return np.array([of_row.sum() / self.classes for of_row in self.hinges])

    def gradient(self, upstream: npt.NDArray[Any]) -> Float64Array:
        """[N, C], of the losses times ``upstream``, [N] or one number."""
        gradient = np.zeros((len(self.hinges), self.classes))
        for row, (of_row, wanted) in enumerate(zip(self.hinges, self.targets, strict=True)):
            counted = of_row > 0.0
            gradient[row] = counted.sum(axis=0)
            np.subtract.at(gradient[row], wanted, counted.sum(axis=1))
        return gradient * (upstream.astype(np.float64) / self.classes).reshape(-1, 1)
