"""The walker refuses what is not NKI, and nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from nkilib.nki import nl
from tests.language import rules
from tests.language.accepted_kernels import ACCEPTED
from tests.language.loading import HEADER_LINES, load
from tests.language.refused_kernels import CASES, Case
from tests.language.walker import walk


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refuses(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(case.refused, tmp_path, monkeypatch)

    refusals = walk(module.kernel).refusals

    found = [(refusal.line - HEADER_LINES, refusal.function, refusal.rule.construct) for refusal in refusals]
    assert found == [(case.line, case.function, case.construct)]
    assert refusals[0].file == module.__file__


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_accepts_the_corrected_twin(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(case.instead, tmp_path, monkeypatch)

    assert walk(module.kernel).messages == []


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(ACCEPTED[name], tmp_path, monkeypatch)

    assert walk(module.kernel).messages == []


def test_the_accepted_kernels_hold_every_allowed_construct() -> None:
    shown = {type(node) for source in ACCEPTED.values() for node in ast.walk(ast.parse(source))}

    assert set(rules.ALLOWED) - shown == set()


def test_every_refusal_is_shown_by_a_kernel() -> None:
    """Each construct of the table of refused nodes stands in a refused kernel; await and its like need an async one."""
    shown = {type(node) for case in CASES for node in ast.walk(ast.parse(case.refused))}
    inside_async_only = {ast.AsyncFor, ast.AsyncWith, ast.Await}

    assert set(rules.REFUSED) - shown == inside_async_only


def test_no_node_is_both_allowed_and_refused() -> None:
    assert set(rules.ALLOWED) & set(rules.REFUSED) == set()


def test_every_rule_names_its_source() -> None:
    sources = [*rules.ALLOWED.values(), *rules.BUILTINS.values(), *rules.ATTRIBUTES.values()]
    sources += [rule.source for rule in (*rules.REFUSED.values(), *_conditions())]

    assert all(source.startswith(("nki/", "aws-neuron/nki-library")) for source in sources)


def _conditions() -> list[rules.Rule]:
    return [value for value in vars(rules).values() if isinstance(value, rules.Rule)]


def test_the_documented_attributes_are_those_of_the_api() -> None:
    """A name of the table that the API's tensor does not have would let a misspelt method through."""
    of_tensors = [name for name, source in rules.ATTRIBUTES.items() if source == rules.TENSOR_API]
    annotated = set(getattr(nl.NkiTensor, "__annotations__", {}))

    assert [name for name in of_tensors if not hasattr(nl.NkiTensor, name) and name not in annotated] == []


def test_a_node_on_neither_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("def kernel(value):\n    return value if value else 2\n", tmp_path, monkeypatch)
    monkeypatch.delitem(rules.ALLOWED, ast.IfExp)

    constructs = [refusal.rule.construct for refusal in walk(module.kernel).refusals]

    assert constructs == ["IfExp"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="except* is syntax of Python 3.11")
def test_syntax_of_later_pythons_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def kernel(value):\n    try:\n        return value\n    except* ValueError:\n        pass\n"
    module = load(source.replace("        return value", "        value = 1"), tmp_path, monkeypatch)

    constructs = [refusal.rule.construct for refusal in walk(module.kernel).refusals]

    assert constructs == ["TryStar"]


def test_a_message_says_where_what_why_and_what_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("def kernel(count):\n    return [index for index in range(count)]\n", tmp_path, monkeypatch)

    assert walk(module.kernel).messages == [
        f"{module.__file__}:{HEADER_LINES + 2}: kernel: a list comprehension is not NKI: it is not among the "
        "constructs that the guide lists: lists and dicts are filled by loops. Write a for loop that appends to a list "
        "or assigns to a dict. (nki/get-started/nki-language-guide.rst, Control Flow)"
    ]


def test_reaches_helpers_of_other_modules_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def low(rows):\n    return rows\n\ndef high(rows):\n    return low(rows) + low(rows)\n\n"
    module = load(source + "@nki.jit\ndef kernel(rows):\n    return high(rows) + low(rows)\n", tmp_path, monkeypatch)

    names = [name.removeprefix(f"{module.__name__}.") for name in walk(module.kernel).functions]

    assert names == ["kernel", "high", "low"]


def test_all_faults_are_reported_in_the_order_of_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def helper(rows):\n    del rows\n\ndef kernel(rows):\n    rows.data\n    yield helper(rows)\n"
    source += "    return lambda: rows\n"
    module = load(source, tmp_path, monkeypatch)

    constructs = [refusal.rule.construct for refusal in walk(module.kernel).refusals]

    # What stands inside a refused construct is not read: helper is reached by the yield only.
    assert constructs == ["the attribute .data", "yield", "lambda"]


def test_refuses_what_is_no_function() -> None:
    with pytest.raises(TypeError, match=r"function_of: kernel must be a function or what nki\.jit returned; got 3"):
        walk(3)
