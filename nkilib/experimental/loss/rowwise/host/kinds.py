"""The rows of the registry of losses for the losses of rows."""

from __future__ import annotations

from typing import Final

from nkilib.base.loss_kind import LossKind, ModelledLaunch
from nkilib.core.host.modelled_launches import launched
from nkilib.experimental.loss import rowwise

_ROWS, _COLUMNS = 4096, 32128
_TESTS: Final = ("tests/experimental/loss/rowwise", "tests/torch/functions")


def modelled(
    forward: tuple[float, float],
    backward: tuple[float, float],
    matrices: tuple[str, ...],
    vectors: tuple[str, ...] = (),
    coefficients: int = 0,
    absent: tuple[str, ...] = (),
) -> tuple[ModelledLaunch, ...]:
    """A forward and a backward with a mean, held to their times over the bound in bfloat16 and in float32.

    Args:
        forward, backward: these times.
        matrices: names of the tensors of rows.
        vectors: names of those of numbers of rows, which the forward takes.
        coefficients: numbers a row that the backward takes.
        absent: names of tensors that are None.
    """
    given, options = dict.fromkeys(matrices, (_ROWS, _COLUMNS)), {f"{name}_hbm": None for name in absent}
    of_backward = {"grad_loss": (1,), **({"coefficients": (coefficients, _ROWS)} if coefficients else {})}
    return (
        launched("forward, mean", True, forward, given, {"float32": dict.fromkeys(vectors, (_ROWS,))}, **options),
        launched("backward, mean", False, backward, given, {"float32": of_backward}, **options),
    )


KINDS: Final = (
    LossKind(
        name="triplet_margin_loss",
        module="TripletMarginLoss",
        forward=rowwise.triplet_margin_loss_forward,
        backward=rowwise.triplet_margin_loss_backward,
        formula="max(0, margin + d(a, p) - d(a, n)), d the p-norm of the difference + eps",
        derivative="d'(a, p) - d'(a, n) where the loss is open, d' = difference / d for p = 2",
        differentiated=("anchor", "positive", "negative"),
        options=("margin", "p", "eps", "swap"),
        tests=_TESTS,
        edges="a distance of 0 has a gradient of 0; equal distances of swap share it",
        differences="p is at least 1; for p other than 1, 2 and infinity a distance from 2^64 on is infinite; two "
        "tensors of rows of one element with a third one of longer rows are refused",
        launches=modelled((1.05, 1.05), (1.05, 1.05), ("anchor", "positive", "negative"), coefficients=2),
    ),
    LossKind(
        name="cosine_embedding_loss",
        module="CosineEmbeddingLoss",
        forward=rowwise.cosine_embedding_loss_forward,
        backward=rowwise.cosine_embedding_loss_backward,
        formula="1 - cos(x, y) for t = 1, max(0, cos(x, y) - margin) for t = -1",
        derivative="k (y / (|x| |y|) - cos x / |x|^2), k = -1 or [cos >= margin]",
        differentiated=("input1", "input2"),
        options=("margin",),
        tests=_TESTS,
        edges="1e-12 is added to squared norms; 0 for other targets",
        differences="rows of both inputs have one length: PyTorch broadcasts a row of one element after its norm",
        launches=modelled((1.5, 1.05), (1.05, 1.05), ("input1", "input2"), vectors=("target",), coefficients=3),
    ),
    LossKind(
        name="multilabel_soft_margin_loss",
        module="MultiLabelSoftMarginLoss",
        forward=rowwise.multilabel_soft_margin_loss_forward,
        backward=rowwise.multilabel_soft_margin_loss_backward,
        formula="mean of w (softplus(-|x|) + x ([x > 0] - t)) over classes",
        derivative="w (sigmoid(x) - t) / C",
        differentiated=("input", "target", "weight"),
        options=("weight",),
        tests=_TESTS,
        edges="x = inf with t = 1, and -inf with t = 0, give NaN",
        launches=modelled((1.4, 1.1), (1.05, 1.05), ("input", "target"), absent=("weight",)),
    ),
)
