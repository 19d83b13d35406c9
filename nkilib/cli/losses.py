# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of losses as parts of pages in Markdown.

- docs/reference/losses.md: a table of the losses, with links to their descriptions (:func:`overview`).
- docs/reference/losses_classification.md and the pages of the other families: a description of each loss
  (:func:`entries`).
- docs/reference/losses_times.md: modelled times (:func:`times`).

``python -m nkilib.cli.losses`` prints the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.cli.guarantees import clauses, item, shared_notes, table, yes_or_no
from nkilib.core.host.loss import Family, Loss, ModelledLaunch
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.public_kernels import guarantee_of

_OVERVIEW: Final = ("loss", "module", "differentiable inputs", "same on 1 and 2 cores")
_TIMES: Final = ("loss", "launch", "bfloat16", "float32")
_DTYPES: Final = ("bfloat16", "float32")


def page_of(family: Family) -> str:
    """Return the name of the page, without suffix, that lists the losses of a family."""
    return f"losses_{(Family.CLASSIFICATION if family is Family.VOCABULARY else family).value}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def overview() -> str:
    """Return a Markdown table of all losses, sorted by family, with links to their descriptions."""
    rows = [
        (
            f"[`{kind.name}`]({page_of(kind.family)}.md#{kind.name})",
            f"`{kind.module}`",
            _names(kind.differentiated),
            yes_or_no(all(guarantee.same_bits_on_cores for guarantee in _guarantees_of(kind))),
        )
        for kind in sorted(LOSSES, key=lambda kind: list(Family).index(kind.family))
    ]
    return table(_OVERVIEW, rows)


def _guarantees_of(kind: Loss) -> tuple[Guarantee, Guarantee]:
    forward, backward = guarantee_of(kind.forward), guarantee_of(kind.backward)
    if forward is None or backward is None:
        raise ValueError(f"{kind.name}: a kernel states no guarantee; state it where it is jitted")
    return forward, backward


def _notes(kind: Loss) -> list[str]:
    return list(dict.fromkeys(note for guarantee in _guarantees_of(kind) for note in clauses(guarantee.notes)))


def _errors(kind: Loss, shared: set[str]) -> Iterator[str]:
    """Yield Markdown list items with the error bounds of a loss, and with its notes that are not in ``shared``.

    The page lists the notes in ``shared`` once for several losses.
    """
    forward, backward = _guarantees_of(kind)
    yield item("Largest error of the loss", forward.error)
    yield item("Largest error of the gradients", backward.error)
    own = "; ".join(note for note in _notes(kind) if note not in shared)
    if own:
        yield item("Notes", own)


def _entry(kind: Loss, shared: set[str]) -> str:
    lines = [
        f"### `{kind.name}`\n",
        item("Module", f"`{kind.module}`"),
        item("Loss", kind.formula),
        item("Derivative", kind.derivative),
        item("Options", _names(kind.options)),
        item("Differentiable inputs", _names(kind.differentiated)),
        *([item("Special values", kind.edges)] if kind.edges else []),
        *([item("Unlike PyTorch", kind.differences)] if kind.differences else []),
        *([] if kind.family is Family.VOCABULARY else _errors(kind, shared)),
    ]
    return "\n".join(lines)


def entries(family: Family) -> str:
    """Return Markdown with a section for each loss of a family, and a list of the notes that several losses share.

    For the family ``VOCABULARY`` the text has neither error bounds nor notes: docs/reference/guarantees_errors.md has
    them.
    """
    kinds = [kind for kind in LOSSES if kind.family is family]
    notes = {} if family is Family.VOCABULARY else {kind.name: _notes(kind) for kind in kinds}
    shared, text = shared_notes(notes)
    parts = [_entry(kind, shared) for kind in kinds]
    return "\n\n".join((*parts, *(("### Notes on several losses", text) if text else ())))


def _modelled(kind: Loss, launch: ModelledLaunch, dtype: str) -> tuple[float, float]:
    """Return the modelled time of a loss's launch in microseconds, and the ratio of this time to its lower bound."""
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
    """Return a Markdown table of modelled times on two cores of trn2.

    A cell has the time in microseconds and its ratio to the hardware's lower bound.
    """
    return table(_TIMES, [row for kind in LOSSES for row in _times_of(kind)])


def over_bound(kind: Loss, launch: ModelledLaunch, dtype: str) -> float:
    """Return the ratio of the modelled time of a loss's launch, with tensors of type ``dtype``, to its lower bound."""
    return _modelled(kind, launch, dtype)[1]


def as_parts() -> Sequence[str]:
    """Return the parts of pages that are made from the registry: the overview, sections by family, and times."""
    return overview(), *map(entries, Family), times()


if __name__ == "__main__":
    print("\n\n".join(as_parts()))
