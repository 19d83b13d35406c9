# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tree for choosing a loss: :func:`choose_a_loss`. The page of the same name has its branches as text."""

from __future__ import annotations

from typing import Final, NamedTuple

from .svg import MARGIN, SMALL, WIDTH, Picture


class Leaf(NamedTuple):
    """A function or call to use.

    Attributes:
        answer: the answer that leads here.
        call: the name to use, as code.
        note: the cost of the function, or the case in which it works.
    """

    answer: str
    call: str
    note: str = ""


class Question(NamedTuple):
    """A question, whose leaves stand beside it.

    Attributes:
        text: the question, and explanations in further lines.
        leaves: the answers that end here.
        onward: the answer that leads to the next question, or to the last leaf.
    """

    text: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    onward: str


QUESTIONS: Final = (
    Question(
        ("Which loss?",),
        (Leaf("another one", "nkilib.torch", "mse_loss to ctc_loss, softmax: the same name"),),
        "cross-entropy, scores of tokens, distillation",
    ),
    Question(
        ("Who calls the loss?",),
        (
            Leaf("TRL", "nkilib.torch.trl.install()"),
            Leaf("TorchTitan", "nkilib.torch.torchtitan.install()"),
            Leaf("verl", "nkilib.torch.verl.install()"),
        ),
        "your own loop, transformers or JAX",
    ),
    Question(
        ("Do the logits of all", "tokens fit in memory?", "2 V bytes a token"),
        (Leaf("yes, or V is below 4 D", "cross_entropy(inplace=True)", "3 matrix products"),),
        "no",
    ),
    Question(
        ("Is D from 16 to 16,384?", "the width of hidden states"),
        (Leaf("no", "ChunkedCrossEntropyLoss", "logits of some tokens at a time"),),
        "yes",
    ),
    Question(
        ("May the model stay", "as it is?"),
        (Leaf("yes", "fuse_linear_loss(model)", "one line; 4 products, no logits in memory"),),
        "no: the loss gets hidden states and weight",
    ),
)
LAST: Final = Leaf(
    "",
    "linear_cross_entropy",
    "4 products, no logits in memory; memory_limit=: 3 products, logits of a block of positions",
)
_BOX, _RIGHT, _GAP, _STEP = 204, 400, 46, 8


def _tall_of(leaf: Leaf) -> float:
    return 46 if leaf.note else 32


def _tall(question: Question) -> float:
    leaves = sum(_tall_of(leaf) + _STEP for leaf in question.leaves) - _STEP
    return max(leaves, 20 + 18 * len(question.text))


def _spoken() -> str:
    parts = []
    for number, question in enumerate(QUESTIONS, 1):
        answers = "; ".join(f"{leaf.answer}: {leaf.call}, {leaf.note}".rstrip(", ") for leaf in question.leaves)
        target = f"question {number + 1}" if number < len(QUESTIONS) else f"{LAST.call}, {LAST.note}"
        parts.append(f"{number}. {' '.join(question.text)} {answers}; {question.onward}: {target}.")
    return " ".join(parts)


def _draw_leaf(picture: Picture, leaf: Leaf, y: float, start: float) -> None:
    """Draw a leaf whose box begins at ``y``, and the arrow to it from ``start`` with its answer above."""
    tall = _tall_of(leaf)
    middle = y + tall / 2
    picture.arrow((start, middle), (_RIGHT - 2, middle))
    picture.text((start + _RIGHT) / 2 - 3, middle - 6, leaf.answer, "muted", size=12, anchor="middle")
    picture.rect(_RIGHT, y, WIDTH - MARGIN - _RIGHT, tall, "fresh edge", radius=6)
    picture.text(_RIGHT + 12, middle + (-4 if leaf.note else 5), leaf.call, style="m b", size=SMALL)
    if leaf.note:
        picture.text(_RIGHT + 12, middle + 14, leaf.note, "muted", size=12)


def _draw_question(picture: Picture, question: Question, y: float) -> None:
    """Draw a question whose box begins at ``y``, with its leaves."""
    tall = _tall(question)
    picture.rect(MARGIN, y, _BOX, tall, "soft edge", radius=6)
    baseline = y + tall / 2 - 9 * len(question.text) + 13
    ends = next(index for index, line in enumerate(question.text) if line.endswith("?"))
    for index, line in enumerate(question.text):
        is_note = index > ends
        kind, style, size = ("muted", "", 12.0) if is_note else ("ink", "b", 13.0)
        picture.text(MARGIN + 12, baseline + 18 * index, line, kind, style, size)
    at = y + (tall - sum(_tall_of(leaf) + _STEP for leaf in question.leaves) + _STEP) / 2
    for leaf in question.leaves:
        _draw_leaf(picture, leaf, at, MARGIN + _BOX + 2)
        at += _tall_of(leaf) + _STEP


def choose_a_loss() -> Picture:
    """Draw the questions below each other, with their leaves on the right."""
    y = 80.0
    picture = Picture(
        y + sum(_tall(question) + _GAP for question in QUESTIONS) + _tall_of(LAST) + 22,
        "Which loss should I use?",
        "D features, V classes; products are those with the output layer, forward and backward",
        _spoken(),
    )
    for question in QUESTIONS:
        _draw_question(picture, question, y)
        y += _tall(question)
        picture.arrow((MARGIN + _BOX / 2, y + 2), (MARGIN + _BOX / 2, y + _GAP - 2))
        picture.text(MARGIN + _BOX / 2 + 10, y + _GAP / 2 + 4, question.onward, "muted", size=12)
        y += _GAP
    picture.rect(MARGIN, y, WIDTH - 2 * MARGIN, _tall_of(LAST), "fresh edge", radius=6)
    picture.text(MARGIN + 12, y + 19, f"{LAST.call}(hidden, weight, target)", style="m b", size=SMALL)
    picture.text(MARGIN + 12, y + 37, LAST.note, "muted", size=12)
    return picture
