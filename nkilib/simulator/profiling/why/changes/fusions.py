# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Pairs of instructions that one instruction, or a faster pair, can replace.

:func:`fused` yields these replacements, as changes that may save time. A *pair* is a call that writes a tile (the
*writer*) and a call that reads the tile (the *reader*). Each rule in :data:`RULES` yields lists of calls to write
instead, the preferred one first. The formulas of the instructions are those of their docstrings
(``nki/api/nki/isa/__init__.py``).

A *program* is the recorded instructions of a core (its *steps*); a *site* is a call in the kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ....numerics.operators import ARITHMETIC
from ....terms.enums import reduce_cmd
from ....timing.recording import Access, CoreProgram, Drain, Step
from ..flow import BESIDES, NEW_TILE, Value, add_new_tiles, parameter_of, reads_of, slot_of, writes_of
from ..study import Candidate, Site, Study, on_each_core
from .calls import Argument, NewCall, OldCall, number, operator

# By the number of calls, what stands for the two.
_INSTEAD = {1: "can be one instruction", 2: "can be one instruction and a small one"}
# Writer and reader lie at most this number of steps apart.
_FARTHEST = 256
_SWAPPABLE = frozenset({"add", "multiply", "maximum", "minimum"})
_DATA = ("data",)
_SUMS = frozenset({"add", "multiply", "maximum", "minimum"})


class Pair(NamedTuple):
    """A call that writes a tile, and a call that reads the tile.

    Attributes:
        writer: the first call.
        reader: the second call.
        roles: the parameters by which the reader reads the tile.
        is_kept: whether other steps read the tile too, so that it must still be written.
    """

    writer: OldCall
    reader: OldCall
    roles: tuple[str, ...]
    is_kept: bool


_Sites = tuple[Site, Site]
Calls = Sequence[NewCall]
Rule = Callable[[Pair], Iterator[Calls]]


def _is_plain_activation(call: OldCall) -> bool:
    # It applies a function and reduces nothing.
    is_idle = call["reduce_cmd"].value in (None, reduce_cmd.idle) and call["reduce_res"].value is None
    return call.name == "activation" and is_idle


def _is_copy(call: OldCall) -> bool:
    if call.name == "tensor_copy":
        return True
    return _is_plain_activation(call) and call.key("op") == "copy" and not call.given("scale", "bias")


def _source(call: OldCall) -> Argument:
    return call["src" if call.name == "tensor_copy" else "data"]


def _is_one_step(call: OldCall) -> bool:
    # It has one arithmetic operator.
    return call.name == "tensor_scalar" and call.key("op0") in ARITHMETIC and not call.key("op1")


def with_sum(pair: Pair) -> Iterator[Calls]:
    """Yield calls that compute and reduce a tile at once, if the writer computes it and the reader reduces it."""
    first, second, *_ = pair
    if second.name != "tensor_reduce" or second.form("dst").free_size != 1 or second["negate"].value:
        return
    key, result = second.key("op"), {"reduce_res": second["dst"]}
    if key not in _SUMS:
        return
    reduced = {"reduce_op": operator(key), **result}
    if key == "add" and _is_plain_activation(first):
        arguments = {name: first[name] for name in ("dst", "op", "data")} | first.given("bias", "scale")
        yield [NewCall("activation_reduce", arguments | reduced)]
    if key == "add" and is_square(first):
        square = {"dst": first["dst"], "op": operator("square"), "data": first["data1"]}
        yield [NewCall("activation_reduce", square | reduced)]
    if first.name == "tensor_tensor" and first.key("op") in ARITHMETIC:
        tiles = {"dst": first["dst"], "data": first["data1"], "op0": operator("multiply"), "operand0": number(1.0)}
        tiles |= {"op1": first["op"], "operand1": first["data2"]}
        yield [NewCall("scalar_tensor_tensor", tiles | reduced)]
    if _is_one_step(first) and not first["reverse0"].value:
        arguments = {name: first[name] for name in ("dst", "data", "op0", "operand0")}
        yield [NewCall("tensor_scalar_reduce", arguments | reduced)]
    if first.name == "scalar_tensor_tensor" and first["reduce_res"].value is None:
        yield [first.with_operands(reduced)]


def is_square(call: OldCall) -> bool:
    return call.name == "tensor_tensor" and call.key("op") == "multiply" and call.is_same("data1", "data2")


def scalar_then_tile(pair: Pair) -> Iterator[Calls]:
    """Yield a ``scalar_tensor_tensor`` if the pair combines a tile with a scalar, then with another tile."""
    first, second, roles, is_kept = pair
    if is_kept or second.name != "tensor_tensor" or len(roles) != 1 or second.key("op") not in ARITHMETIC:
        return
    other = "data2" if roles[0] == "data1" else "data1"
    is_reversed = other == "data1" and second.key("op") not in _SWAPPABLE
    if _is_one_step(first):
        step = {"op0": first["op0"], "operand0": first["operand0"]} | first.given("reverse0")
    elif _is_plain_activation(first) and first.key("op") == "copy" and not first.given("bias"):
        step = {"op0": operator("multiply"), "operand0": first["scale"]}
    else:
        return
    arguments = {"dst": second["dst"], "data": first["data"], **step, "op1": second["op"], "operand1": second[other]}
    reverse = {"reverse1": Argument(True, "True")} if is_reversed else {}
    yield [NewCall("scalar_tensor_tensor", arguments | reverse)]


def tile_then_scalar(pair: Pair) -> Iterator[Calls]:
    """Yield a ``scalar_tensor_tensor`` if the pair multiplies (or adds) two tiles, then multiplies by (or adds) a
    scalar.
    """
    first, second, roles, is_kept = pair
    if is_kept or roles != _DATA or first.name != "tensor_tensor" or not _is_one_step(second):
        return
    if first.key("op") != second.key("op0") or first.key("op") not in ("add", "multiply"):
        return
    arguments = {"dst": second["dst"], "data": first["data1"], "op0": second["op0"], "operand0": second["operand0"]}
    yield [NewCall("scalar_tensor_tensor", arguments | {"op1": first["op"], "operand1": first["data2"]})]


def two_scalars(pair: Pair) -> Iterator[Calls]:
    """Yield a ``tensor_scalar`` if the pair combines a tile with one scalar, then with another scalar."""
    first, second, roles, is_kept = pair
    if is_kept or roles != _DATA or not (_is_one_step(first) and _is_one_step(second)):
        return
    arguments = {"dst": second["dst"], "data": first["data"], "op0": first["op0"], "operand0": first["operand0"]}
    arguments |= first.given("reverse0") | {"op1": second["op0"], "operand1": second["operand0"]}
    if second["reverse0"].value:
        arguments["reverse1"] = second["reverse0"]
    yield [NewCall("tensor_scalar", arguments)]


def into_activation(pair: Pair) -> Iterator[Calls]:
    """Yield an activation with scale or bias, if the writer scales or shifts the data of the activation."""
    first, second, roles, is_kept = pair
    is_reduced = second.name == "activation_reduce"
    if is_kept or roles != _DATA or first.name != "tensor_scalar" or not (is_reduced or second.name == "activation"):
        return
    if first["reverse0"].value or first["reverse1"].value or second.given("scale"):
        return
    keys, has_bias = (first.key("op0"), first.key("op1")), bool(second.given("bias"))
    given: dict[str, Argument] = {"data": first["data"]}
    if keys == ("multiply", "") or (keys == ("multiply", "add") and not has_bias):
        given["scale"] = first["operand0"]
        if keys[1]:
            given["bias"] = first["operand1"]
        yield [second.with_operands(given)]
    elif keys == ("add", "") and not has_bias:
        yield [second.with_operands(given | {"bias": first["operand0"]})]
    elif keys == ("subtract", "") and not has_bias:
        shift = first["operand0"]
        if not isinstance(shift.value, Access):
            yield [second.with_operands(given | {"bias": number(-float(shift.value))})]
            return
        # There are as many of these tiles as of those that are not needed any more.
        dropped: Access = first["dst"].value
        negative = Argument(shift.value._replace(storage=slot_of(dropped.storage, NEW_TILE)), "negative")
        product = {"dst": negative, "data": shift, "op0": operator("multiply"), "operand0": number(-1.0)}
        yield [NewCall("tensor_scalar", product), second.with_operands(given | {"bias": negative})]


def _stands_for(original: Argument, copy: Argument) -> bool:
    """Return whether an instruction may read ``original`` instead of ``copy``.

    Shapes and partitions must be equal, and so must the types unless both are floats.
    """
    if not isinstance(original.value, Access) or not isinstance(copy.value, Access):
        return False
    one, other = original.value.footprint, copy.value.footprint
    are_floats = not one.form.dtype.is_integer and not other.form.dtype.is_integer
    is_alike = one.form.shape == other.form.shape and (are_floats or one.form.dtype == other.form.dtype)
    return is_alike and (one.side.first, one.side.step) == (other.side.first, other.side.step)


def without_copy(pair: Pair) -> Iterator[Calls]:
    """Yield the reader of a copy, changed to read the original tile; engines cast what they read."""
    first, second, roles, is_kept = pair
    if is_kept or not _is_copy(first) or second.step.action.meets:
        return
    if _stands_for(_source(first), first["dst"]):
        yield [second.with_operands(dict.fromkeys(roles, _source(first)))]


def into_copy(pair: Pair) -> Iterator[Calls]:
    """Yield the writer of a tile that is only copied, changed to write the copy; engines cast what they write."""
    first, second, _, is_kept = pair
    is_computed = first.step.action.kind.engine != "tensor" and not first.step.action.meets
    if is_kept or not _is_copy(second) or not is_computed:
        return
    if _stands_for(_source(second), second["dst"]):
        yield [first.with_operands({"dst": second["dst"]})]


def known_function(pair: Pair) -> Iterator[Calls]:
    """Yield one activation if the pair computes a sigmoid times its argument, or the reciprocal of a square root."""
    first, second, roles, is_kept = pair
    if is_kept or not _is_plain_activation(first) or len(roles) != 1:
        return
    function = ""
    if second.name == "tensor_tensor" and second.key("op") == "multiply" and first.key("op") == "sigmoid":
        other = second["data2" if roles[0] == "data1" else "data1"]
        function = "silu" if other.value == first["data"].value and not first.given("scale", "bias") else ""
    elif first.key("op") == "sqrt" and second.name == "reciprocal":
        function = "rsqrt"
    if function:
        yield [first.with_operands({"dst": second["dst"], "op": operator(function)})]


# In the order in which they are tried.
RULES: tuple[Rule, ...] = (
    with_sum,
    scalar_then_tile,
    known_function,
    into_activation,
    two_scalars,
    tile_then_scalar,
    without_copy,
    into_copy,
)


class _Found(NamedTuple):
    """A pair, by the indices of its two steps in a program, with the other fields of :class:`Pair`."""

    writer: int
    reader: int
    roles: tuple[str, ...]
    is_kept: bool


def _step(program: CoreProgram, at: int) -> Step:
    step = program.steps[at]
    assert isinstance(step, Step)
    return step


def _readers(study: Study, program: CoreProgram, value: Value) -> Iterator[_Found]:
    # Readers of exactly the whole value, and of no other value at the same operand.
    flow = study.flow(program)
    by_step: dict[int, list[int]] = defaultdict(list)
    for at, position in value.readers:
        by_step[at].append(position)
    for at, positions in by_step.items():
        is_exact = all(position != BESIDES and len(flow.read[at, position]) == 1 for position in positions)
        if is_exact and at - value.writer <= _FARTHEST:
            action = _step(program, at).action
            roles = tuple(parameter_of(action, position) for position in positions)
            if all(roles):
                yield _Found(value.writer, at, roles, len(by_step) > 1)


def _pairs(study: Study, program: CoreProgram) -> Mapping[tuple[Site, Site], list[_Found]]:
    pairs: dict[tuple[Site, Site], list[_Found]] = defaultdict(list)
    for values in study.flow(program).written.values():
        for value in values:
            writer = _step(program, value.writer)
            if not value.is_whole or value.position != 0 or writer.action.kind.work or writer.register:
                continue
            for found in _readers(study, program, value):
                reader = _step(program, found.reader)
                if not reader.register and not reader.action.kind.work:
                    pairs[writer.site, reader.site].append(found)
    return pairs


def _touches(program: CoreProgram, first: int, end: int, parts: Sequence[Access], *, reads: bool) -> bool:
    # Whether a step writes to one of ``parts`` or, with ``reads``, reads one.
    for step in program.steps[first:end]:
        if isinstance(step, Drain):
            return True
        accesses = [*writes_of(step.action), *(reads_of(step.action) if reads else ())]
        for _, access in accesses:
            for part in parts:
                own, other = access.footprint.part, part.footprint.part
                if access.storage == part.storage and own is not None and other is not None and own.meets(other):
                    return True
    return False


def _place_for(program: CoreProgram, found: _Found) -> int | None:
    """Return the index at which the new calls can stand: the reader's, or the writer's.

    Returns:
        None if steps in between access the same data, so that neither index is possible.
    """
    writer, reader, _, is_kept = found
    first, second = _step(program, writer).action, _step(program, reader).action
    if not is_kept and not _touches(program, writer + 1, reader, [one for _, one in reads_of(first)], reads=False):
        return reader
    made = {access.storage for _, access in writes_of(first)}
    others = [access for _, access in reads_of(second) if access.storage not in made]
    if _touches(program, writer + 1, reader, others, reads=False):
        return None
    is_free = not _touches(program, writer + 1, reader, [access for _, access in writes_of(second)], reads=True)
    return writer if is_free else None


def _applied(study: Study, sites: _Sites, rule: Rule, which: int, program: CoreProgram) -> CoreProgram | None:
    """Return a program in which the calls of a rule replace pairs of steps; None if no pair is replaced.

    Args:
        study: the study of the launch.
        sites: the calls of writer and reader in the kernel.
        rule: the rule.
        which: the position of the new calls among those that the rule yields.
        program: the program to change.
    """
    replaced: dict[int, list[Step]] = {}
    storages = dict(program.storages)
    for found in _pairs(study, program).get(sites, ()):
        place = _place_for(program, found)
        writer, reader = _step(program, found.writer), _step(program, found.reader)
        if place is None or found.writer in replaced or found.reader in replaced:
            continue
        alternatives = list(rule(Pair(OldCall(writer), OldCall(reader), found.roles, found.is_kept)))
        actions = [call.action(study.kinds) for call in alternatives[which]] if which < len(alternatives) else []
        if not actions or None in actions:
            continue
        replaced[found.writer] = replaced[found.reader] = []
        replaced[place] = [reader._replace(action=action) for action in actions if action is not None]
        for action in actions:
            add_new_tiles(storages, action)
    if not replaced:
        return None
    steps: list[Step | Drain] = []
    for at, step in enumerate(program.steps):
        steps += replaced.get(at, [step])
    return CoreProgram(steps, storages)


def fused(study: Study) -> Iterator[Candidate]:
    """Yield changes to try: for each pair of calls in the kernel, the calls of a rule that can replace it."""
    steps = [step for step in study.main.steps if isinstance(step, Step)]
    counts = Counter(step.site for step in steps if not step.action.kind.dropped_by)
    for sites, found in _pairs(study, study.main).items():
        # Each step of both calls belongs to a pair: else the calls cannot be changed in the kernel's source.
        if sites[0] == sites[1] or not counts[sites[0]] == counts[sites[1]] == len(found):
            continue
        writer, reader = (OldCall(_step(study.main, at)) for at in found[0][:2])
        pair = Pair(writer, reader, found[0].roles, found[0].is_kept)
        for rule in RULES:
            for which, calls in enumerate(rule(pair)):
                texts = tuple(call.text for call in calls)
                if any(call.action(study.kinds) is None for call in calls):
                    continue
                yield Candidate(
                    "fusion",
                    on_each_core(partial(_applied, study, sites, rule, which)),
                    f"{study.line(sites[0])} and {study.line(sites[1])} {_INSTEAD[len(texts)]}: write "
                    f"{' and '.join(texts)}",
                    sites,
                    ("fusion", sites),
                    texts,
                )
