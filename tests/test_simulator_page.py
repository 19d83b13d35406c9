# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tables of docs/reference/simulator_functions.md name every documented function once, with its true state, engines
and generation, and tell which names are compared with NKI 0.7; docs/reference/simulator_readings.md marks the questions
that 0.7 leaves open."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from nkilib.simulator.machine.issue import REGISTRY
from tests.simulator.api.documented import DOCUMENTED, READ_OF_0_7
from tests.simulator.api.test_names import MODULES, is_implemented, missing_methods

DOCS = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGE = (DOCS / "simulator_functions.md").read_text(encoding="utf-8")
READINGS = (DOCS / "simulator_readings.md").read_text(encoding="utf-8")
GENERATIONS = {2: "trn1", 3: "trn2", 4: "trn3"}
RUNS, OPERATOR, MISSING = "runs", "operator", "NotImplementedError"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the third level."""
    _, _, rest = PAGE.partition(f"\n### {heading}\n")
    section, _, _ = rest.partition("\n### ")
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def states(heading: str, column: int = 1) -> dict[str, str]:
    """The state of every name in backticks in a column of the table."""
    named = [(name, row[-1]) for row in rows(heading) for name in re.findall(r"`(\w+)`", row[column])]
    assert [name for name, count in Counter(name for name, _ in named).items() if count > 1] == []
    return dict(named)


def true_state(module: str, name: str) -> str:
    if module == "nki.language" and "parameters" not in DOCUMENTED[module][name]:
        return OPERATOR if name in ("average", "bypass", "prelu") else RUNS
    return RUNS if is_implemented(module, name) else MISSING


@pytest.mark.parametrize(("module", "column"), [("nki.isa", 0), ("nki.language", 1), ("nki.collectives", 0)])
def test_every_documented_name_has_its_state(module: str, column: int) -> None:
    api = {name: what for name, what in DOCUMENTED[module].items() if hasattr(MODULES[module], name)}
    expected = {name: true_state(module, name) for name, what in api.items() if "parameters" in what}
    if module == "nki.language":
        classes = {name for name, what in api.items() if what.keys() & {"members", "methods"}} | {"DType"}
        expected |= {name: true_state(module, name) for name in api.keys() - classes}
    if module == "nki.collectives":
        expected = {name: true_state(module, name) for name in api} | {"reduce_scatter_v": MISSING}
    assert states(module, column) == expected


def test_every_method_of_a_tensor_has_its_state() -> None:
    methods = DOCUMENTED["nki.language"]["NkiTensor"]["methods"].keys() - {"__init__"}
    missing = missing_methods()
    assert states("NkiTensor") == {name: MISSING if name in missing else RUNS for name in methods}


def test_the_module_itself() -> None:
    named = {name for row in rows("nki") for name in re.findall(r"`(\w+)`", row[0])}
    assert named >= DOCUMENTED["nki"].keys()
    assert all(hasattr(MODULES["nki"], name) for name in DOCUMENTED["nki"])


def test_instructions_have_their_engines_and_generation() -> None:
    for name, _, engines, since, _ in rows("nki.isa"):
        definition = REGISTRY.get(name.strip("`"))
        if definition is None:  # not an instruction: it asks for the target, or makes a register
            assert (engines, since) == ("", "trn1")
            continue
        assert since == GENERATIONS[definition.since.value], name
        documented = "sync, scalar" if name == "`dma_copy`" else engines  # by default the DMA engine itself
        assert documented == ", ".join(engine.name for engine in definition.engines), name
        assert name != "`dma_copy`" or engines == "dma; with hardware descriptors sync, scalar"


def test_names_that_are_compared_with_0_7_are_told_from_those_of_0_6() -> None:
    section = PAGE.partition("\n## Compared with NKI 0.7\n")[2].partition("\n## ")[0]
    dated, undated, others = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line][1:]
    read = {
        f"{module}.{name}": what["read"] == "latest"
        for module, api in READ_OF_0_7.items()
        for name, what in api.items()
    }
    assert re.findall(r"`([\w.]+)`", dated) == [name for name, is_undated in read.items() if not is_undated]
    assert re.findall(r"`([\w.]+)`", undated) == [name for name, is_undated in read.items() if is_undated]
    assert others == "| documentation of 0.6 only | all others |"


def test_a_question_that_is_marked_0_7_is_about_a_name_that_was_read_there() -> None:
    questions = [line.split(" | ")[0] for line in READINGS.splitlines() if line.startswith("| ") and "(0.7) | " in line]
    read = [(name, what) for api in READ_OF_0_7.values() for name, what in api.items()]
    members = {member for _, what in read for kind in ("methods", "attributes") for member in what.get(kind, ())}
    # Also a kernel, what nki.jit makes, and the activations, which are two.
    kept = {name for name, _ in read} | members | {"activations", "kernel"}
    assert len(questions) > 10
    assert [question for question in questions if kept.isdisjoint(re.findall(r"\w+", question))] == []
