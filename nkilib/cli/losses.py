# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of losses as tables for docs/losses.md.

``python -m nkilib.cli.losses`` prints them, with modelled times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from nkilib.cli.tables import in_cell, said, table
from nkilib.core.host.loss import Loss, ModelledLaunch
from nkilib.experimental.host.public_kernels import guarantee_of
from nkilib.experimental.loss.registry import LOSSES

_FORMULAS: Final = ("loss", "module", "of an element or row", "derivative by the input", "options", "gradients of")
_GUARANTEES: Final = ("loss", "largest error", "of gradients", "on 1 and 2 cores", "in place")
_TERM_ERRORS: Final = ("loss", "u of the largest term", "for each further u of a function", "terms")
_EDGES: Final = ("loss", "edges", "differences from PyTorch")
_TIMES: Final = ("loss", "launch", "bfloat16", "float32")
_DTYPES: Final = ("bfloat16", "float32")


def formulas() -> str:
    """What each loss is."""
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
    """What the kernels of each promise; the whole of it is on the page of the kernels."""
    rows = []
    for kind in LOSSES:
        forward, backward = guarantee_of(kind.forward), guarantee_of(kind.backward)
        if forward is None or backward is None:
            raise ValueError(f"{kind.name}: a kernel states no guarantee; state it where it is jitted")
        both = forward.same_bits_on_cores and backward.same_bits_on_cores
        in_place = f"`{backward.in_place}`" if backward.in_place else "-"
        error = "above" if forward.term_errors else in_cell(forward.error)
        rows.append((f"`{kind.name}`", error, in_cell(backward.error), said(both), in_place))
    return table(_GUARANTEES, rows)


def term_errors() -> str:
    """The errors of losses as figures, a row for each form of a loss; the same as :func:`guarantees` has."""
    rows = []
    for kind in LOSSES:
        guarantee = guarantee_of(kind.forward)
        for each in guarantee.term_errors if guarantee is not None else ():
            name = f"`{kind.name}`, {in_cell(each.form)}" if each.form else f"`{kind.name}`"
            own = f"{each.figure}, and {in_cell(each.beside)}" if each.beside else each.figure
            further = ", ".join(f"`{function}` {factor:g}" for function, factor in each.functions.items())
            rows.append((name, own, further or "-", in_cell(each.terms) or "the loss"))
    return table(_TERM_ERRORS, rows)


def edges() -> str:
    """Where values are special, and where PyTorch's function does another thing."""
    told = [kind for kind in LOSSES if kind.edges or kind.differences]
    return table(
        _EDGES, [(f"`{kind.name}`", in_cell(kind.edges) or "-", in_cell(kind.differences) or "-") for kind in told]
    )


def times() -> str:
    """Modelled for two cores of trn2: microseconds, and over the bound."""
    return table(_TIMES, [row for kind in LOSSES for row in _times_of(kind)])


def over_bound(kind: Loss, launch: ModelledLaunch, dtype: str) -> float:
    """The modelled time of a launch over its bound."""
    return _modelled(kind, launch, dtype)[1]


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


def _modelled(kind: Loss, launch: ModelledLaunch, dtype: str) -> tuple[float, float]:
    """Microseconds, and over the bound."""
    from nkilib.simulator import profile, using

    kernel: Any = kind.forward if launch.forward else kind.backward
    with using(target="trn2"):
        found = profile(kernel[2], **launch.arguments(dtype))
    bounds = found.bounds_us
    bound = max(bounds.values()) if launch.held_to is None else bounds[launch.held_to]
    return found.time_us, found.time_us / bound


def as_tables() -> Sequence[str]:
    """All of them, in the order of the page."""
    return formulas(), term_errors(), guarantees(), edges(), times()


if __name__ == "__main__":
    print("\n\n".join(as_tables()))
