# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Other engines for the instructions of busy engines, as changes that may save time: :func:`moved` yields them.

A *program* is the recorded instructions of a core (its *steps*); a *site* is a call in the kernel, which may issue many
steps; an *action* is the instruction of a step with its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ....timing.recording import Access, Action, CoreProgram, Drain, Step
from ..critical_path import ENGINES
from ..facts import summed
from ..flow import NEW_TILE, add_new_tiles, slot_of
from ..study import Candidate, Site, Study, on_each_core
from .calls import Argument, NewCall, OldCall, operator
from .fusions import is_square

# An engine that is busy for this share of the time may be too busy, and the calls of it that are tried.
_BUSY_FROM = 0.3
_MOST_CALLS = 5
# A call may also be moved in every second step only.
_STRIDES = (1, 2)

Remade = Callable[[Step], Action | None]


def _on_engine(study: Study, engine: str) -> Remade:
    # The function returns None for a step that ``engine`` cannot run.
    def remade(step: Step) -> Action | None:
        action = step.action
        if engine not in action.kind.others:
            return None
        forms = [None if access is None else access.footprint.form for access in action.operands]
        kind = study.kinds.kind(action.definition, ENGINES[engine], forms, action.deciding)
        return action._replace(kind=kind, choices=())

    return remade


def _on_scalar(step: Step) -> NewCall | None:
    # The ``activation`` with which Scalar does the work of an instruction of another engine.
    call = OldCall(step)
    if is_square(call):
        return NewCall("activation", {"dst": call["dst"], "op": operator("square"), "data": call["data1"]})
    if call.name == "reciprocal":
        return NewCall("activation", {"dst": call["dst"], "op": operator("reciprocal"), "data": call["data"]})
    if call.name == "tensor_reduce" and call.key("op") == "add" and call.form("dst").free_size == 1:
        if call["negate"].value:
            return None
        data: Access = call["data"].value
        scratch = Argument(data._replace(storage=slot_of(data.storage, NEW_TILE)), "scratch")
        reduced = {"reduce_op": operator("add"), "reduce_res": call["dst"]}
        return NewCall("activation_reduce", {"dst": scratch, "op": operator("copy"), "data": call["data"]} | reduced)
    return None


def _applied(site: Site, remade: Remade, stride: int, program: CoreProgram) -> CoreProgram | None:
    # Every ``stride``-th step of ``site`` gets the action that ``remade`` returns; None if no step changes.
    steps: list[Step | Drain] = []
    storages = dict(program.storages)
    seen = changed = 0
    for step in program.steps:
        if isinstance(step, Step) and step.site == site and not step.action.kind.dropped_by:
            seen += 1
            action = remade(step) if seen % stride == 0 else None
            if action is not None:
                changed += 1
                step = step._replace(action=action)
                add_new_tiles(storages, action)
        steps.append(step)
    return CoreProgram(steps, storages) if changed else None


def _ways(study: Study, step: Step, engine: str) -> Iterator[tuple[str, Remade, str, tuple[str, ...]]]:
    """Yield the ways to run a step of ``engine`` on another engine.

    A way is the name of the other engine, a function that makes the step's action on that engine, the text of the
    change, and the calls to write.
    """
    kind = step.action.kind
    for other in kind.others:
        if other == engine:
            continue
        yield other, _on_engine(study, other), f"with engine=nisa.engine.{other}", ()
    call = _on_scalar(step) if engine != "scalar" else None
    if call is not None and call.action(study.kinds) is not None:

        def remade(step: Step) -> Action | None:
            new = _on_scalar(step)
            return None if new is None else new.action(study.kinds)

        further = ", with a further tile for scratch" if "scratch" in call.text else ""
        yield "scalar", remade, f"as {call.text}{further}", (call.text,)


def moved(study: Study) -> Iterator[Candidate]:
    """Yield changes to try: each costly call of a busy engine, or every second of its steps, on another engine."""
    facts = study.facts
    clock_ghz = study.model.generation.timing.clock_ghz
    kinds = [(step.site, step.action.kind) for step in study.main.steps if isinstance(step, Step)]
    spent = summed(
        ((site, kind.engine), kind.cycles / clock_ghz[ENGINES[kind.engine]])
        for site, kind in kinds
        if kind.cycles and kind.engine != "tensor"
    )
    busy = [name for name, share in facts.busy_shares.items() if share >= _BUSY_FROM and name not in ("dma", "tensor")]
    largest = sorted((key for key in spent if key[1] in busy), key=lambda key: -spent[key])
    for site, engine in largest[:_MOST_CALLS]:
        step = study.first_steps[site]
        for other, remade, how, calls in _ways(study, step, engine):
            for stride in _STRIDES:
                which = "" if stride == 1 else "every second call of "
                yield Candidate(
                    "engine",
                    on_each_core(partial(_applied, site, remade, stride)),
                    f"{engine.capitalize()} is busy {facts.busy_shares[engine]:.0%} of the time and {other} "
                    f"{facts.busy_shares.get(other, 0.0):.0%}. Run {which}{study.line(site)} on {other}, {how}",
                    (site,),
                    ("engine", site),
                    calls,
                )
