# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Problems for the vocabulary-parallel loss: what each rank is given, and what float64 PyTorch says of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from tests.torch.formula import capped, entropy_of, formula
from tests.torch.inputs import make_logits, make_probabilities, make_targets, make_weight

POSITIONS: Final = 6
# What stands in padded columns: each of them changes a loss that it gets into.
PADDING: Final = (float("nan"), float("inf"), 3e38)
# Of a target that is ignored where a case names no other one.
IGNORED: Final = -100


@dataclass(frozen=True)
class Case:
    """One call of ``vocab_parallel_cross_entropy`` on all ranks, and a backward.

    Attributes:
        name: the name of the test.
        sizes: classes of each rank.
        widths: columns of each rank.
        layout: the keyword arguments that say so.
        dtype: the type of the logits.
        options: further keyword arguments; ``weight`` and ``normalizer`` are True for those of the case.
        kind: the kind of logits and targets, see :func:`logits_and_targets`.
        shape: the shape of the positions.
    """

    name: str
    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    layout: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    kind: str = "normal"
    shape: tuple[int, ...] = (POSITIONS,)

    @property
    def num_classes(self) -> int:
        return sum(self.sizes)

    @property
    def reduction(self) -> str:
        return str(self.options.get("reduction", "mean"))

    @property
    def class_dim(self) -> int:
        return int(self.options.get("class_dim", -1))

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the call."""
        arguments = {**self.options, **self.layout}
        if "weight" in arguments:
            arguments["weight"] = make_weight(self.num_classes)
        if "normalizer" in arguments:
            arguments["normalizer"] = torch.tensor(37.0)
        return arguments

    def upstream(self) -> Tensor | None:
        """The gradient of the loss; None for 1."""
        return make_logits(*self.shape, seed=9) if self.reduction == "none" else None


def logits_and_targets(case: Case) -> tuple[Tensor, Tensor]:
    """Logits [*shape, V] of all ranks, rounded to the type of the case, and class indices of ``shape``.

    Kinds: ``normal``; ``probabilities``, targets [*shape, V] float32; ``first`` and ``last``, all targets within the
    shard of one rank; ``confident``, the target has a probability of 0.999; ``offset``, around 100,000, where a unit of
    float32 is 2^-7; ``masked``, all classes of rank 0 are -inf; ``all ignored``.
    """
    classes = case.num_classes
    logits = make_logits(*case.shape, classes, dtype=torch.float32)
    target = make_targets(*case.shape, classes=classes)
    if case.kind == "first":
        target %= case.sizes[0]
    elif case.kind == "last":
        target = classes - 1 - target % case.sizes[-1]
    elif case.kind == "confident":
        others = math.log(0.999 / 0.001 * (classes - 1))
        logits = 0.01 * logits + others * torch.nn.functional.one_hot(target, classes)
    elif case.kind == "offset":
        logits = logits + 1e5
    elif case.kind == "masked":
        logits[..., : case.sizes[0]] = -torch.inf
        target = case.sizes[0] + target % (classes - case.sizes[0])
    ignored = case.options.get("ignore_index", IGNORED)
    if case.kind == "probabilities":
        target = make_probabilities(*case.shape, classes, class_dim=-1)
    elif case.kind == "all ignored":
        target = torch.full_like(target, ignored)
    elif case.kind == "normal":
        target.view(-1)[1::3] = ignored
    return logits.to(case.dtype), target


def shard(case: Case, whole: Tensor, rank: int) -> Tensor:
    """The columns of a rank, with padding after them."""
    first = sum(case.sizes[:rank])
    kept = whole[..., first : first + case.sizes[rank]]
    padding = torch.tensor(PADDING)[torch.arange(case.widths[rank] - case.sizes[rank]) % len(PADDING)]
    columns = torch.cat([kept, padding.to(whole.dtype).expand(*whole.shape[:-1], -1)], -1)
    return columns.movedim(-1, case.class_dim).contiguous()


def objective(
    case: Case,
    loss: Tensor,
    lse: Tensor | None = None,
    logprob: Tensor | None = None,
    entropy: Tensor | None = None,
) -> Tensor:
    """Return the scalar that the backward starts from: the loss of every position times the upstream gradient of the
    case, and lse, logprob and entropy, where there are any, with gradients of their own.
    """
    upstream = case.upstream()
    total = loss.sum() if upstream is None else (loss * upstream.to(loss.dtype)).sum()
    for seed, values in ((10, lse), (11, logprob), (12, entropy)):
        if values is not None:
            total = total + (values * make_logits(*case.shape, seed=seed).to(values.dtype)).sum()
    return total


def reference(case: Case) -> dict[str, Tensor]:
    """Return the results of the unsharded logits [*shape, V] in float64, by name: ``gradient`` and
    ``target_gradient`` of the objective, and the outputs.
    """
    logits, target = logits_and_targets(case)
    x = logits.double().reshape(-1, case.num_classes).requires_grad_()
    arguments = case.arguments()
    if case.kind == "probabilities":
        y = target.double().reshape(-1, case.num_classes).requires_grad_()
        valid = torch.ones(len(x), dtype=torch.bool)
    else:
        y = torch.where(target == arguments.get("ignore_index", IGNORED), IGNORED, target).reshape(-1)
        valid = y != IGNORED
    kept = {name: arguments[name] for name in ("weight", "label_smoothing") if name in arguments}
    temperature = torch.as_tensor(arguments.get("temperature", 1.0), dtype=torch.float64).reshape(-1, 1)
    softcap, scale = arguments.get("logit_softcap"), arguments.get("lse_square_scale", 0.0)
    normalizer, reduction = arguments.get("normalizer"), case.reduction
    reduced = reduction if normalizer is None else "sum"
    loss, without = (formula(x, y, softcap, item, reduced, temperature=temperature, **kept) for item in (scale, 0.0))
    if normalizer is not None:
        loss, without = loss / normalizer.double(), without / normalizer.double()
    loss, without = (item.reshape(case.shape) if reduction == "none" else item for item in (loss, without))
    z = capped(x, softcap) / temperature
    lse = z.logsumexp(1).reshape(case.shape)
    results = {"loss": loss, "z_loss": loss - without, "lse": lse, "argmax": x.argmax(1).reshape(case.shape)}
    results["entropy"] = entropy_of(z).reshape(case.shape)
    if case.kind != "probabilities":
        of_target = z.log_softmax(1).gather(1, y.clamp(min=0)[:, None])[:, 0]
        results["logprob"] = torch.where(valid, of_target, 0.0).reshape(case.shape)
    has_outputs = case.options.get("return_outputs", False)
    objective(case, loss, *((lse, results.get("logprob"), results["entropy"]) if has_outputs else ())).backward()
    assert x.grad is not None
    results["gradient"] = x.grad.reshape(logits.shape)
    if y.grad is not None:
        results["target_gradient"] = y.grad.reshape(logits.shape)
    return {name: values.detach() for name, values in results.items()}


_RAGGED: Final = {2: (11, 4), 3: (9, 1, 5)}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignored class": {"ignore_index": 3},
    "weight": {"weight": True},
    "smoothing": {"label_smoothing": 0.1},
    "weighted smoothing": {"weight": True, "label_smoothing": 0.1},
    "nothing but smoothing": {"label_smoothing": 1.0},
    "softcap": {"logit_softcap": 4.0},
    "z-loss": {"lse_square_scale": 0.05},
    "temperature": {"temperature": 1.7},
    "temperatures": {"temperature": torch.tensor([0.5, 1.0, 0.7, 3.0, 40.0, 1.5]), "reduction": "none"},
    "normalizer": {"normalizer": True},
    "everything": {
        "weight": True,
        "ignore_index": 2,
        "reduction": "none",
        "label_smoothing": 0.2,
        "logit_softcap": 5.0,
        "lse_square_scale": 0.05,
        "temperature": 1.3,
        "inplace": True,
    },
}
_OUTPUTS: Final[dict[str, dict[str, Any]]] = {
    "outputs": {},
    "all outputs of a sum": {
        "weight": True,
        "reduction": "sum",
        "label_smoothing": 0.1,
        "logit_softcap": 5.0,
        "lse_square_scale": 0.05,
        "temperature": 1.3,
    },
}


def _layouts(ranks: int) -> list[Case]:
    """Even, ragged and padded shards, targets all over and in one shard only."""
    ragged = _RAGGED[ranks]
    padded = tuple(size + 3 - rank for rank, size in enumerate(ragged))
    even = (5,) * ranks
    last_padded = (*even[:-1], 2)
    last_empty = (*even[:-1], 0) if ranks == 2 else (5, 3, 0)
    ragged_layout: dict[str, Any] = {"shard_sizes": list(ragged)}
    return [
        Case("even", even, even),
        Case("padded vocabulary", last_padded, even, {"num_classes": sum(last_padded)}),
        Case("last rank all padding", last_empty, even, {"num_classes": sum(last_empty)}),
        Case("ragged", ragged, ragged, ragged_layout),
        Case("ragged and padded", ragged, padded, ragged_layout),
        Case("first rank empty", (0, *ragged[1:]), (0, *padded[1:]), {"shard_sizes": [0, *ragged[1:]]}),
        Case("targets of the first rank", ragged, padded, ragged_layout, kind="first"),
        Case("targets of the last rank", ragged, padded, ragged_layout, kind="last"),
        Case("three dimensions", ragged, ragged, ragged_layout, shape=(2, 3), options={"reduction": "none"}),
        Case("classes second", ragged, padded, ragged_layout, shape=(2, 3), options={"class_dim": 1}),
        Case("in place", ragged, ragged, ragged_layout, options={"inplace": True}),
        Case("in place, padded", ragged, padded, ragged_layout, options={"inplace": True}),
        Case("one position in place, padded", ragged, padded, ragged_layout, options={"inplace": True}, shape=(1,)),
        Case("one position, padded", ragged, padded, ragged_layout, shape=(1,), kind="first"),
    ]


def _hard_rows(ranks: int, dtype: torch.dtype) -> list[Case]:
    ragged = _RAGGED[ranks]
    layout: dict[str, Any] = {"shard_sizes": list(ragged)}
    kinds = ["confident", "masked", *(["offset"] if dtype == torch.float32 else [])]
    cases = [Case(f"{kind} {dtype}", ragged, ragged, layout, dtype, {"reduction": "none"}, kind) for kind in kinds]
    if dtype == torch.float32:
        smoothing = {"reduction": "none", "label_smoothing": 0.1}
        cases.append(Case("smoothing around 100,000", ragged, ragged, layout, dtype, smoothing, "offset"))
    return cases


def all_cases(ranks: int) -> list[Case]:
    """The cases of a group of ``ranks``, each with a name of its own."""
    cases = _layouts(ranks)
    ragged = _RAGGED[ranks]
    for dtype in (torch.float32, torch.bfloat16):
        for name, options in _OPTIONS.items():
            layout: dict[str, Any] = {"shard_sizes": list(ragged)}
            cases.append(Case(f"{name} {dtype}", ragged, ragged, layout, dtype, options))
            if "ignore_index" not in options:
                cases.append(Case(f"soft {name} {dtype}", ragged, ragged, layout, dtype, options, "probabilities"))
        cases += _hard_rows(ranks, dtype)
        cases += _with_outputs(ranks, dtype)
    return cases


def _with_outputs(ranks: int, dtype: torch.dtype) -> list[Case]:
    ragged = _RAGGED[ranks]
    padded = tuple(size + rank for rank, size in enumerate(ragged))
    with_empty = (0, *ragged[1:])
    return [
        Case(
            f"{kind}, {name} {dtype} {sizes}",
            sizes,
            widths,
            {"shard_sizes": list(sizes)},
            dtype,
            {**options, "return_outputs": True},
            kind,
        )
        for kind in ("normal", "probabilities", "masked")
        for name, options in _OUTPUTS.items()
        for sizes, widths in ((ragged, padded), (with_empty, with_empty))
        # What smoothing makes of a mask is infinite, and an empty shard cannot be masked.
        if kind != "masked" or (name == "outputs" and sizes == ragged)
    ]


def all_ignored(ranks: int) -> list[Case]:
    """Nothing counts: PyTorch's mean is NaN, and the gradient 0."""
    even = (5,) * ranks
    return [
        Case(
            f"all ignored, {reduction}, {name}",
            even,
            even,
            options={"reduction": reduction, **more},
            kind="all ignored",
        )
        for reduction in ("mean", "sum")
        for name, more in (("plain", {}), ("weighted smoothing", {"weight": True, "label_smoothing": 0.1}))
    ]
