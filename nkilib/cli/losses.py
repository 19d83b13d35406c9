# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of losses as tables for docs/reference/losses.md: formulas, guarantees, bounds of errors, edges, and
modelled times.

``python -m nkilib.cli.losses`` prints the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from nkilib.cli.guarantees import in_cell, table, yes_or_no
from nkilib.core.host.loss import Loss, ModelledLaunch
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.public_kernels import guarantee_of

_FORMULAS: Final = (
    "loss",
    "module",
    "loss per element or row",
    "derivative with respect to the input",
    "options",
    "differentiable inputs",
)
_GUARANTEES: Final = (
    "loss",
    "largest error",
    "largest error of gradients",
    "bitwise identical on 1 and 2 cores",
    "in place",
)
_TERM_ERRORS: Final = (
    "loss",
    "error, in u of the largest term",
    "plus, for each further u of error of a function",
    "terms",
)
_EDGES: Final = ("loss", "edges", "differences from PyTorch")
_TIMES: Final = ("loss", "launch", "bfloat16", "float32")
_DTYPES: Final = ("bfloat16", "float32")


def formulas() -> str:
    """Return the table of formulas and derivatives."""
    rows = [
        (
            f"`{kind.name}`",
            f"`{kind.module}`",
            in_cell(kind.formula),
            in_cell(kind.derivative),
            ", ".join(f"`{option}`" for option in kind.options) or "-",
            ", ".join(f"`{name}`" for name in kind.differentiated),
        )
        for kind in LOSSES
    ]
    return table(_FORMULAS, rows)


def guarantees() -> str:
    """Return the table of the main guarantees of the kernels. docs/reference/guarantees.md has all of them."""
    rows = []
    for kind in LOSSES:
        forward, backward = guarantee_of(kind.forward), guarantee_of(kind.backward)
        if forward is None or backward is None:
            raise ValueError(f"{kind.name}: a kernel states no guarantee; state it where it is jitted")
        same_on_cores = forward.same_bits_on_cores and backward.same_bits_on_cores
        in_place = f"`{backward.in_place}`" if backward.in_place else "-"
        error = "above" if forward.term_errors else in_cell(forward.error)
        rows.append((f"`{kind.name}`", error, in_cell(backward.error), yes_or_no(same_on_cores), in_place))
    return table(_GUARANTEES, rows)


def term_errors() -> str:
    """Return the table of the :class:`~nkilib.base.guarantee.TermError` bounds of the losses, a row for each form of a
    loss.

    :func:`guarantees` refers to this table for these losses.
    """
    rows = []
    for kind in LOSSES:
        guarantee = guarantee_of(kind.forward)
        for bound in guarantee.term_errors if guarantee is not None else ():
            name = f"`{kind.name}`, {in_cell(bound.form)}" if bound.form else f"`{kind.name}`"
            own = f"{bound.figure}, plus {in_cell(bound.beside)}" if bound.beside else bound.figure
            further = ", ".join(f"`{function}` {factor:g}" for function, factor in bound.functions.items())
            rows.append((name, own, further or "-", in_cell(bound.terms) or "the loss"))
    return table(_TERM_ERRORS, rows)


def edges() -> str:
    """Return the table of special values, and of differences from PyTorch's functions."""
    told = [kind for kind in LOSSES if kind.edges or kind.differences]
    return table(
        _EDGES, [(f"`{kind.name}`", in_cell(kind.edges) or "-", in_cell(kind.differences) or "-") for kind in told]
    )


def _modelled(kind: Loss, launch: ModelledLaunch, dtype: str) -> tuple[float, float]:
    """Return the modelled time of a launch in microseconds, and its ratio to the lower bound."""
    from nkilib.simulator import profile, using

    kernel: Any = kind.forward if launch.forward else kind.backward
    with using(target="trn2"):
        result = profile(kernel[2], **launch.arguments(dtype))
    bounds = result.bounds_us
    bound = max(bounds.values()) if launch.bounded_by is None else bounds[launch.bounded_by]
    return result.time_us, result.time_us / bound


def _times_of(kind: Loss) -> Iterator[tuple[str, ...]]:
    for launch in kind.launches:
        cells = []
        for dtype in _DTYPES:
            if dtype not in launch.bound:
                cells.append("-")
                continue
            microseconds, ratio = _modelled(kind, launch, dtype)
            cells.append(f"{microseconds:,.0f}, {ratio:.2f}")
        yield (f"`{kind.name}`", launch.label, *cells)


def times() -> str:
    """Return the table of modelled times on two cores of trn2: microseconds, and their ratio to the lower bound that
    the hardware sets.
    """
    return table(_TIMES, [row for kind in LOSSES for row in _times_of(kind)])


def over_bound(kind: Loss, launch: ModelledLaunch, dtype: str) -> float:
    """Return the ratio of a launch's modelled time to its lower bound."""
    return _modelled(kind, launch, dtype)[1]


def as_tables() -> Sequence[str]:
    """Return all tables, in the order of the page."""
    return formulas(), term_errors(), guarantees(), edges(), times()


if __name__ == "__main__":
    print("\n\n".join(as_tables()))
