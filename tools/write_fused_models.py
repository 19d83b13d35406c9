# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write docs/reference/fused_models.md: every causal language model class of ``transformers`` beside its fused self.

``python -m tools.write_fused_models`` trains a tiny model of each class for a step, in some minutes, and tells about
each. ``--figures`` prints how far the steps are apart too, and ``CLASS ...`` runs only some and writes nothing.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.torch.lazy_logits.architecture_outcomes import (
    APART,
    COMPUTED,
    NOT_BUILT,
    RIGHT,
    STOCK_FAILS,
    WRONG,
    Outcome,
    outcomes_of,
)
from tests.torch.lazy_logits.architectures import class_names

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "fused_models.md"
CHUNKS: Final = 12

_HEAD: Final = """\
# Models that `fuse_linear_loss` has been tried with

`python -m tools.write_fused_models` writes this page, with transformers {transformers} and torch {torch}. It has every
class of that release for causal language models. From the configuration of each a tiny model is made, with random
parameters. It trains for a step with the loss that it computes from `labels=`, as it is and after
[`fuse_linear_loss`](../how_to/hugging_face.md). Only what is listed here has been measured.

{counts}

"Right" is a class whose loss ran on hidden states and weights with no logits computed, and whose loss and gradients are
those of the stock model. In float32 the loss and the gradient of each parameter are within 1e-5 of the stock model's in
norm; a gradient below a thousandth of the norm of all is compared with that share. Where that is exceeded, and in
bfloat16, distances from float64 are compared: that of the loss, and that of the gradients as a whole, are at most twice
the stock model's, and that of the gradient of a parameter is at most four times the stock model's, or twice that of all
gradients. A distance below 1e-5 in float32, or below one rounding to bfloat16, is none. Both distances are rounding
errors of one size, mostly of the layers before the output layer; so in bfloat16 the gradients as a whole must also be
within {apart:.0%} of the stock model's. Where logits are computed, results are right, and no memory is saved.
"""


def release() -> str:
    """Return the release of transformers that the page was written with."""
    found = re.search(r"transformers ([0-9.]+) and torch", PAGE.read_text(encoding="utf-8"))
    return found[1] if found else ""


def chunk(names: Sequence[str], part: int) -> Sequence[str]:
    """Return the classes of one of `CHUNKS` processes."""
    size = -(-len(names) // CHUNKS)
    return names[part * size : (part + 1) * size]


def rows(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Return the lines of the table, without its head."""
    for outcome in outcomes:
        detail = outcome.detail.replace("|", "\\|").replace("<", "\\<")
        because = {COMPUTED: " because of ", RIGHT: " " if detail else ""}.get(outcome.result, ": ")
        yield f"| `{outcome.name}` | {outcome.result}{because}{detail} |"


def page(outcomes: Sequence[Outcome]) -> str:
    """Return the whole page."""
    number = {
        kind: sum(each.result == kind for each in outcomes) for kind in (RIGHT, COMPUTED, WRONG, STOCK_FAILS, NOT_BUILT)
    }
    trained = number[RIGHT] + number[COMPUTED] + number[WRONG]
    lines = [
        f"- {len(outcomes)} classes; the stock model of {_share(trained, len(outcomes))} trains.",
        f"- Of these, {_share(number[RIGHT], trained)} run fused with no logits computed and are right.",
        f"- {number[COMPUTED]} compute logits, and {number[WRONG]} are wrong.",
        f"- {number[NOT_BUILT]} could not be built, and the stock model of {number[STOCK_FAILS]} fails.",
    ]
    releases = {name: version(name).split("+")[0] for name in ("transformers", "torch")}
    head = _HEAD.format(**releases, counts="\n".join(lines), apart=APART)
    return "\n".join([head, "| class | result |", "|---|---|", *rows(outcomes)]) + "\n"


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / max(1, whole):.1%})"


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", metavar="CLASS", help="run only these, and write nothing")
    parser.add_argument("--figures", action="store_true", help="print how far the steps are apart")
    arguments = parser.parse_args()

    def tell(outcome: Outcome) -> None:
        print(*rows([outcome]), outcome.figures if arguments.figures else "", flush=True)

    names = arguments.classes or class_names()
    outcomes = [each for part in range(CHUNKS) for each in outcomes_of(chunk(names, part), tell)]
    if not arguments.classes:
        PAGE.write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
