# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The documentation: code blocks run as they stand, tables of functions, worked examples.

Each block runs in a process that has seen nothing of nkilib.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from nkilib.simulator.machine.issue import REGISTRY
from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS
from tests.neuron import machine
from tests.optional_packages import missing_in_text
from tests.simulator.api.documented import DOCUMENTED, READ_OF_0_7
from tests.simulator.api.test_names import MODULES, is_implemented, missing_methods
from tests.warm_python import run_script

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# Scripts of these are run by tests/tutorials, in the order of the page, and their output is compared.
FOLLOWED = frozenset({*(ROOT / "docs" / "tutorials").glob("*.md"), ROOT / "docs" / "how_to" / "on_an_instance.md"})


def blocks(language: str, without: frozenset[Path] = frozenset()) -> list[Any]:
    """The blocks in ``language`` of all pages but ``without``, each with the page and line as its name."""
    marked = []
    for page in PAGES:
        if page in without:
            continue
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match.group(1) == language:
                line = text[: match.start()].count("\n") + 1
                marked.append(pytest.param(match.group(2), id=f"{page.relative_to(ROOT)}:{line}"))
    return marked


def _is_for_any_nki(source: str) -> bool:
    return "nkilib.nki" in source and not re.search(r"nkilib\.simulator|nkilib import simulator|SIMULATED", source)


def skip_without_packages(source: str) -> None:
    """Skip the test of a block that imports PyTorch or JAX where that is not installed."""
    missing = missing_in_text(source)
    if missing:
        pytest.skip(f"needs {missing}")


@pytest.mark.parametrize("source", blocks("python", without=FOLLOWED))
def test_python_block_runs(source: str, tmp_path: Path) -> None:
    skip_without_packages(source)
    script = tmp_path / "block.py"
    script.write_text(source, encoding="utf-8")
    done = run_script(script)
    assert done.returncode == 0, done.output


@pytest.mark.parametrize("source", [block for block in blocks("python") if _is_for_any_nki(block.values[0])])
def test_blocks_that_do_not_ask_for_the_simulator_run_on_the_documented_nki(source: str, tmp_path: Path) -> None:
    skip_without_packages(source)
    script = tmp_path / "block.py"
    script.write_text(source, encoding="utf-8")
    done = machine.run(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", blocks("bash"))
def test_commands_of_bash_blocks_work(source: str, tmp_path: Path) -> None:
    """`make` finds its target; `python -m` runs, on a script of one line where the command names one."""
    (tmp_path / "script.py").write_text("import nki.language as nl")
    for line in source.replace("\\\n", "").splitlines():  # a line that ends with a backslash goes on
        words = shlex.split(line, comments=True)
        variables = dict(word.split("=", 1) for word in takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
        program, *arguments = words[len(variables) :]
        assert program in ("make", "python"), f"neither make nor python: {line!r}"
        command = [sys.executable, *arguments] if program == "python" else ["make", "--dry-run", "-C", ROOT, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=with_checkout(**variables), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([\w/.-]+\.md|(?=#))(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
            linked = page.parent / target if target else page
            assert linked.is_file(), f"{page.name} links to {target}"
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in slugs, f"{page.name} links to {target}#{anchor}"


def test_tests_that_a_page_names_exist() -> None:
    """`module::function`, in whatever words around it: a name that is misspelt must not go unread. Not in blocks."""
    named = 0
    for page in PAGES:
        for module, function in re.findall(r"\b(test_\w+)::(\w+)", BLOCK.sub("", page.read_text(encoding="utf-8"))):
            if (module, function) in (("module", "function"), ("namespace", "name")):
                continue  # how names of tests are written, and those of operators
            sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(f"{module}.py")]
            assert any(f"\ndef {function}(" in source for source in sources), f"{page.name} names {module}::{function}"
            named += 1
    assert named > 0


REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
FUNCTIONS_PAGE = (REFERENCE / "simulator_functions.md").read_text(encoding="utf-8")
READINGS = "".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("simulator_readings*.md")))
GENERATIONS = {2: "trn1", 3: "trn2", 4: "trn3"}
RUNS, OPERATOR, MISSING = "runs", "operator", "NotImplementedError"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the third level."""
    _, _, rest = FUNCTIONS_PAGE.partition(f"\n### {heading}\n")
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
    section = FUNCTIONS_PAGE.partition("\n## Compared with NKI 0.7\n")[2].partition("\n## ")[0]
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


# The pages whose diffs add a loss with its own kernels, an elementwise loss, and an option of cross-entropy.
KERNELS, ELEMENTWISE, OPTION = ("add_a_loss_with_kernels", "add_a_loss", "add_an_option")
WORKED = (KERNELS, ELEMENTWISE, OPTION)
# The losses are public, and the tests that are named pass.
TESTS = """
import sys
import pytest
from nkilib.torch import soft_margin_loss, squared_error
assert callable(squared_error) and callable(soft_margin_loss)
sys.exit(pytest.main(sys.argv[1:]))
"""
# Tests that go through tables, of which those of the new row run.
OF_TABLES = (
    "tests/experimental/loss/skeletons/elementwise",
    "tests/experimental/loss/test_registry.py",
    "tests/experimental/test_shared_refusals.py",
    "tests/torch/functions/test_arguments.py",
    "tests/torch/functions/test_losses.py",
    "tests/torch/losses/test_elementwise.py",
)
CHOSEN = "squared_error or smoothing_skips_target or (soft_margin_loss and not multilabel) or listed_once"
COPIED = ("nkilib", "tests", "docs", "tools", "pyproject.toml", "README.md", "constraints.txt")


@dataclass(frozen=True)
class Change:
    """One file of a diff.

    Attributes:
        path: the path of the file.
        is_new: it is not there yet.
        hunks: for each its lines with their first character: " ", "+" or "-"; an empty line stands for " ".
    """

    path: str
    is_new: bool
    hunks: tuple[tuple[str, ...], ...]

    def apply(self, root: Path) -> None:
        """Change the file below ``root``; where a hunk belongs must be clear from its context alone."""
        file = root / self.path
        assert file.exists() != self.is_new, f"{self.path} is there already, or not there"
        text = "" if self.is_new else file.read_text(encoding="utf-8")
        for hunk in self.hunks:
            before, after = (
                "".join(f"{line[1:]}\n" for line in hunk if (line[:1] or " ") in kinds) for kinds in (" -", " +")
            )
            assert self.is_new or text.count(before) == 1, f"{self.path} has not this once:\n{before}"
            text = after if self.is_new else text.replace(before, after)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def changes_of(page: str) -> list[Change]:
    """The diffs of a page that name files."""
    text = (CHECKOUT / "docs" / "how_to" / f"{page}.md").read_text(encoding="utf-8")
    results = []
    for block in re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for old, path, body in re.findall(
            r"^--- (\S+)\n\+\+\+ b/(\S+)\n(.*?)(?=^--- |\Z)", block, re.MULTILINE | re.DOTALL
        ):
            hunks = [hunk.splitlines() for hunk in re.split(r"^@@.*\n", body, flags=re.MULTILINE)[1:]]
            assert hunks and all(line[:1] in ("", " ", "+", "-") for hunk in hunks for line in hunk), path
            results.append(Change(path, old == "/dev/null", tuple(tuple(hunk) for hunk in hunks)))
    return results


def assert_runs(root: Path, *command: str) -> None:
    """Run Python there; it must succeed."""
    environment = with_checkout(PYTHONPATH=str(root))
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr


def copy_to(root: Path) -> Path:
    """A copy of the code, with what Python has compiled of it: the times of the files are kept, so that it is used."""
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, root / name)
        else:
            root.mkdir(exist_ok=True)
            shutil.copy2(source, root / name)
    return root


def copy_changed(root: Path, paths: Iterable[str]) -> Path:
    """A copy of those of the files that the checkout has."""
    for path in paths:
        if (CHECKOUT / path).exists():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / path, root / path)
    return root


def paths_of(page: str) -> list[str]:
    return [change.path for change in changes_of(page)]


def new_tests() -> list[str]:
    """The files of tests that the pages add."""
    changes = [change for page in WORKED for change in changes_of(page)]
    return [change.path for change in changes if change.is_new and change.path.startswith("tests")]


def test_all_apply_pass_ruff_and_their_own_tests(tmp_path: Path) -> None:
    """Each applies alone; checked and run together, since a process that runs tests of torch takes its time."""
    sources: list[str] = []
    every = copy_to(tmp_path / "every")
    for page in WORKED:
        alone = copy_changed(tmp_path / page, paths_of(page))
        for change in changes_of(page):
            change.apply(alone)
            change.apply(every)
        sources += [path for path in paths_of(page) if path.endswith(".py")]
    assert_runs(every, "-m", "ruff", "check", "--quiet", *sources)
    assert_runs(every, "-m", "ruff", "format", "--quiet", "--check", *sources)
    assert_runs(every, "-m", "tools.write_tables", "--but-times")
    assert_runs(every, "-c", TESTS, "-q", "-x", "-m", "not sweep", "-k", CHOSEN, *new_tests(), *OF_TABLES)


def test_a_loss_is_a_kernel_folder_a_file_for_torch_tests_and_a_row() -> None:
    paths = paths_of(KERNELS)
    assert [path for path in paths if "experimental" in path] == [
        "nkilib/experimental/loss/squared_error/kernels.py",
        "nkilib/experimental/loss/squared_error/__init__.py",
        "nkilib/experimental/loss/__init__.py",  # its map
    ]
    others = [path for path in paths if "experimental" not in path]
    assert others == [
        "nkilib/torch/functions/squared_error.py",
        "nkilib/torch/functions/__init__.py",  # its map
        "nkilib/torch/__init__.py",
        "docs/reference/torch.md",
        "tests/torch/functions/test_squared_error.py",
        "tests/torch/functions/test_arguments.py",
    ]


def test_a_loss_of_elements_is_two_files_names_and_a_row_of_a_test() -> None:
    """Nothing that is there changes: lines are added."""
    changes = changes_of(ELEMENTWISE)
    assert [change.path for change in changes if change.is_new] == [
        "nkilib/experimental/loss/elementwise/soft_margin.py",
        "nkilib/torch/functions/soft_margin_loss.py",
    ]
    assert [change.path for change in changes if not change.is_new] == [
        "nkilib/experimental/loss/registry.py",
        "nkilib/experimental/loss/__init__.py",
        "nkilib/experimental/loss/elementwise/__init__.py",
        "nkilib/experimental/loss/inline.py",
        "nkilib/torch/functions/__init__.py",
        "nkilib/torch/__init__.py",
        "tests/torch/functions/losses.py",
        "tests/torch/functions/test_arguments.py",
    ]
    assert not [line for change in changes for hunk in change.hunks for line in hunk if line.startswith("-")]


def test_an_option_takes_at_most_five_files_and_no_code_of_torch() -> None:
    paths = paths_of(OPTION)
    assert len(paths) == len(set(paths)) <= 5
    assert not [path for path in paths if path.startswith("nkilib/torch")]
    assert [path for path in paths if path.startswith("tests")] and "docs/reference/torch.md" in paths
