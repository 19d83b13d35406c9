# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The figures of charts that stand on pages, as the cells of those pages, and the table of modelled times.

A test finds each of these cells on a page. To change one, change the page and this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"

Cells = tuple[str, ...]


class Errors(NamedTuple):
    """Errors of one library against float64, as cells of a table: in norm, and of gradients also in the worst row.

    Attributes:
        library: the name in the chart.
        loss: the error of the loss or divergence.
        hidden, weight: the errors of the gradients of hidden states and weight.
    """

    library: str
    loss: str
    hidden: str
    weight: str


# explanation/linear_cross_entropy.md: N = 2048, D = 2048, V = 32,000, other libraries on an H200. Ours on inputs of the
# same kind: evidence/peers.md, below the chart.
CROSS_ENTROPY_ERRORS: Final = (
    Errors("PyTorch, bfloat16 logits", "8e-4", "1.82e-3, 4.1e-3", "1.82e-3, 4.6e-2"),
    Errors("PyTorch, float32 logits", "6e-6", "1.78e-3, 4.1e-3", "1.79e-3, 3.3e-2"),
    Errors("Liger-Kernel 0.8.2", "6e-6", "1.78e-3, 4.1e-3", "3.4e-3, 3.3e-2"),
    Errors("CCE", "4e-6", "1.5e-2, 2.4e-2", "3.4e-3, 7.6e-3"),
    Errors("nkilib, simulated", "below 1e-7", "1.66e-3, 2.6e-3", "1.65e-3, 4.0e-3"),
)
# explanation/distillation.md: N = 1024, Ds = 1024, Dt = 2048, V = 32,000.
DIVERGENCE_ERRORS: Final = (
    Errors("PyTorch, bfloat16 logits", "7.0e-3", "2.0e-2, 4.6e-2", "2.0e-2, 1.5e-1"),
    Errors("PyTorch, float32 logits", "6.6e-4", "1.6e-2, 3.0e-2", "1.7e-2, 9.5e-2"),
    Errors("Liger-Kernel 0.8.5", "3.0e-6", "2.3e-3, 3.5e-3", "6.4e-3, 1.1e-2"),
    Errors("TRL 1.16", "3.2e-6", "2.3e-3, 3.5e-3", "2.3e-3, 4.3e-3"),
    Errors("nkilib, simulated", "1.5e-7", "2.3e-3, 3.5e-3", "2.3e-3, 4.3e-3"),
)

# Modelled microseconds and their ratio to the bound at [4096, 32128], by type of the operands.
# reference/softmax.md: forward and backward along the last axis.
SOFTMAX_TIMES: Final = {
    "log_softmax": {"bfloat16": ("719 (1.00)", "1,076 (1.00)"), "float32": ("1,432 (1.00)", "2,147 (1.00)")},
    "softmax": {"bfloat16": ("809 (1.13)", "1,081 (1.01)"), "float32": ("1,432 (1.00)", "2,147 (1.00)")},
}
# explanation/distillation.md: forward KL and its gradient, reverse KL and its gradient, beta = 0.5 and its gradient.
DISTILLATION_TIMES: Final = {
    "bfloat16": ("960 (1.12)", "1,158 (1.08)", "957 (1.12)", "1,163 (1.08)", "2,831 (1.32)", "1,142 (1.06)"),
    "float32": ("1,565 (1.09)", "2,184 (1.02)", "1,565 (1.09)", "2,195 (1.02)", "3,044 (1.42)", "2,199 (1.02)"),
}
# explanation/distillation.md, in bfloat16 at (N, Ds, Dt) = (4096, 2048, 4096), V = 151,936: ratio and milliseconds,
# in the order of the forms above but without reverse KL.
LINEAR_DISTILLATION_TIMES: Final = ("1.008 (49.0)", "1.043 (84.5)", "1.107 (53.8)", "1.046 (84.8)")


class Launch(NamedTuple):
    """A launch whose modelled time is compared with the bound of the hardware.

    Attributes:
        kernel: the function of ``nkilib.torch``.
        form: forward or backward, with options if the launch has some.
        dtype: ``"bfloat16"`` or ``"float32"``.
        ratio: the modelled time over the bound.
        has_options: whether it is another form than the one that most programs run.
    """

    kernel: str
    form: str
    dtype: str
    ratio: float
    has_options: bool = False

    @property
    def is_forward(self) -> bool:
        """Whether the launch computes the loss, not its gradients."""
        return self.form.startswith("forward")


# What the form of a launch says of how most programs run it.
_USUAL: Final = re.compile(r", (mean|none|4,096 features)\b")


# The head of the table of modelled times that ``python -m tools.write_tables`` writes into a page.
_HEAD: Final = "| loss | launch | bfloat16 | float32 |\n"


def _times_of_losses() -> Iterator[Cells]:
    """Yield the rows of the table of modelled times.

    Raises:
        ValueError: if not exactly one page has that table.
    """
    texts = [page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))]
    tables = [text.partition(_HEAD)[2] for text in texts if _HEAD in text]
    if len(tables) != 1:
        raise ValueError(f"one page must have the table {_HEAD.strip()!r}, but {len(tables)} have it")
    for line in tables[0].partition("\n\n")[0].splitlines()[1:]:
        yield tuple(cell.strip() for cell in line.split("|")[1:-1])


def _ratio_in(cell: str) -> float:
    """Return the ratio of a cell such as ``"960 (1.34)"``."""
    return float(cell.rstrip(")").rpartition("(")[2])


def launches() -> list[Launch]:
    """Return the launches of all kernels whose modelled times the pages have, in the order of the pages."""
    found = []
    for name, form, *cells in _times_of_losses():
        for dtype, cell in zip(("bfloat16", "float32"), cells, strict=True):
            if cell != "-":
                ratio = float(cell.rpartition(", ")[2])
                found.append(Launch(name.strip("`"), form, dtype, ratio, "," in _USUAL.sub("", form, count=2)))
    for name, by_dtype in SOFTMAX_TIMES.items():
        for dtype, (forward, backward) in by_dtype.items():
            found.append(Launch(name, "forward", dtype, _ratio_in(forward)))
            found.append(Launch(name, "backward", dtype, _ratio_in(backward)))
    forms = tuple(f"{way}, {loss}" for loss in ("KL", "reverse KL", "JSD") for way in ("forward", "backward"))
    for dtype, times in DISTILLATION_TIMES.items():
        for form, cell in zip(forms, times, strict=True):
            found.append(Launch("distillation_loss", form, dtype, _ratio_in(cell), "JSD" in form))
    for form, cell in zip((*forms[:2], *forms[4:]), LINEAR_DISTILLATION_TIMES, strict=True):
        ratio = float(cell.partition(" ")[0])
        found.append(Launch("linear_distillation_loss", form, "bfloat16", ratio, "JSD" in form))
    return found
