"""The open NKI front end, klr-lang 0.0.12, reads our kernels, and reads what we wrote.

That release is older than NKI 0.6: `klr_limits.py` lists what it cannot read though NKI has it, and what it leaves out.
The kernels keep clear of the first, and what comes out is compared with the source, statement by statement, but for the
second.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import pytest

from tests.language import child
from tests.language.klr_forms import NotReadError, function_form
from tests.language.klr_limits import LOSSES, OBSTACLES, Loss, Obstacle
from tests.language.loading import HEADER_LINES, load
from tests.language.source import definition_of
from tests.language.walker import function_of, walk

MODULE: Final = "nkilib.experimental.loss"
KERNELS: Final = (
    "cross_entropy_forward",
    "cross_entropy_backward",
    "extended_cross_entropy_forward",
    "extended_cross_entropy_backward",
)

needs_klr = pytest.mark.skipif(
    find_spec("klr") is None or find_spec("klr.frontend") is None,
    reason="klr-lang 0.0.12 is not installed: it has wheels for CPython 3.9 to 3.12 on Linux and macOS, and no sources",
)


def form_of(function: FunctionType) -> Any:
    """The form of a function. Through JSON, as the forms of the front end come: tuples become lists."""
    definition = definition_of(function)
    assert definition is not None
    return json.loads(json.dumps(function_form(definition.node)))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_keep_clear_of_what_klr_cannot_read(name: str, tmp_path: Path) -> None:
    view = child.run("hardware_view", MODULE, name, tmp_path)

    assert view["obstacles"] == []


@needs_klr
@pytest.mark.parametrize("name", KERNELS)
def test_klr_reads_the_kernels(name: str, tmp_path: Path) -> None:
    view = child.run("hardware_view", MODULE, name, tmp_path)

    read = child.run("klr_parse", MODULE, name, tmp_path)

    assert set(read) == {"entry", "functions"}, read
    assert read["entry"] == f"{MODULE}.{'extended_inline' if name.startswith('extended') else 'inline'}.{name}"
    assert set(read["functions"]) == set(view["forms"])
    for function, form in view["forms"].items():
        assert read["functions"][function] == form, function


FAITHFUL: Final = '''\
LOWEST = -3.0e38

def helper(rows, columns):
    """Helpers are read too."""
    assert rows > 0 and columns > 0, f"helper: rows must be positive, got {rows}"
    return rows * columns

@nki.jit
def kernel(tensor, count=2, mode="sum", dtype=nl.bfloat16):
    rows, columns = tensor.shape
    tile = nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)
    items = [LOWEST, 1.5, True]
    for index in range(0, count, 2):
        part = tile[index : index + 2, ::2, 0, ...]
        nisa.memset(dst=part, value=items[0])
        if mode == "sum":
            items.append(helper(rows, columns=columns))
            continue
        elif count != 2 or count <= 1:
            pass
        else:
            break
    flat = tile[0:2].reshape((rows * columns, 1)).ap(pattern=[[1, 2], [1, 1]], offset=None)
    small = 1 if count % 2 == 0 else 2**30 - (3 // 2) / 4 + (8 >> 1 | 1 & 3 ^ 4 << 1)
    flat.width = left = small
    nisa.dma_copy(dst=flat, src=tile)
    nisa.dma_copy(dst=tile, src=flat, name=f"copy{count}")
    print(f"{left}")
    return flat, left
'''


@needs_klr
def test_klr_reads_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(FAITHFUL, tmp_path, monkeypatch)
    functions = walk(module.kernel).functions

    read = child.run("klr_parse", module.__name__, "kernel", tmp_path)

    assert set(read["functions"]) == set(functions)
    for name, function in functions.items():
        assert read["functions"][name] == form_of(function)


@needs_klr
@pytest.mark.parametrize("obstacle", OBSTACLES, ids=lambda obstacle: obstacle.name)
def test_obstacles_are_obstacles(obstacle: Obstacle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of klr-lang that reads one of them, or says something else, shows here."""
    module = load(obstacle.example, tmp_path, monkeypatch)
    (definition,) = [definition_of(function) for function in walk(module.kernel).functions.values()]
    assert definition is not None

    read = child.run("klr_parse", module.__name__, "kernel", tmp_path)

    if obstacle.outcome == "refused":
        assert read == {"refused": obstacle.behaviour}
    else:
        # Where memory happens to hold something harmless it does not crash.
        assert "crashed" in read or "functions" in read
    with pytest.raises(NotReadError):
        function_form(definition.node)


@needs_klr
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_losses_are_no_more_than_listed(loss: Loss, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [tmp_path / "written", tmp_path / "read"]
    for directory in directories:
        directory.mkdir()
    module = load(loss.written, directories[0], monkeypatch)
    read = child.run("klr_parse", module.__name__, "kernel", directories[0])
    what_is_left = load(loss.read, directories[1], monkeypatch)

    form = read["functions"][f"{module.__name__}.kernel"]
    assert form == form_of(function_of(module.kernel))
    assert form == form_of(what_is_left.kernel)


@needs_klr
def test_a_body_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An obstacle inside a branch or a loop does not stop the front end: it takes the body for empty."""
    source = "def kernel(value):\n    if value:\n        print(value)\n        del value\n    return 1\n"
    module = load(source, tmp_path, monkeypatch)
    definition = definition_of(module.kernel)
    assert definition is not None

    (read,) = child.run("klr_parse", module.__name__, "kernel", tmp_path)["functions"].values()

    assert read["body"] == [["branch", ["var", "value"], [], []], ["return", ["value", "int", 1]]]
    with pytest.raises(NotReadError, match=f"line {HEADER_LINES + 4}: klr-lang has no form for the statement Delete"):
        function_form(definition.node)
