# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of losses: every kind has its kernels, guarantees, functions of PyTorch, docs and tests."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from nkilib.cli.losses import entries, over_bound, overview, page_of
from nkilib.core.host.loss import Family, Loss, ModelledLaunch
from nkilib.experimental import loss
from nkilib.experimental.loss import extended_inline, inline
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.public_kernels import guarantee_of, public_kernels
from nkilib.verify.registry import cases

CHECKOUT = Path(__file__).resolve().parents[3]
REFERENCE = CHECKOUT / "docs" / "reference"
PAGE, TIMES_PAGE = ((REFERENCE / name).read_text(encoding="utf-8") for name in ("losses.md", "losses_times.md"))
# Losses that tests/torch/functions/losses.py does not compare with torch.nn.functional. PyTorch does not have them, or
# not their arguments (DTensors, further results, hidden states). Each has tests of its own in tests/torch/functions.
OWN_ARGUMENTS = {"cross_entropy", "linear_cross_entropy"}
LEGACY = {"size_average", "reduce"}
CASES = {case.kernel for case in cases() if hasattr(case, "kernel")}
# Public kernels that no function of torch.nn.functional stands for, and one that gives losses and gradients at once.
BESIDE = {
    "cross_entropy_backward",
    "cross_entropy_forward",
    "distillation_backward",
    "distillation_forward",
    "linear_cross_entropy_forward_backward",
    "linear_distillation_backward",
    "linear_distillation_forward",
    "linear_distillation_mixture",
    "linear_token_scores_backward",
    "linear_token_scores_forward",
    "mse_loss_forward_backward",
}
DIRECTIONS = ("_forward", "_backward", "_mixture")
every_entry = pytest.mark.parametrize("entry", LOSSES, ids=lambda entry: entry.name)
TIMES = [
    pytest.param(entry, launch, dtype, id=f"{entry.name} {launch.label} {dtype}")
    for entry in LOSSES
    for launch in entry.launches
    for dtype in launch.bound
]
# A kind of each skeleton and loop, but for one of which a launch takes a minute; its tests have shorter ones.
ONE_OF_EACH = {entry.name if type(entry) is Loss else type(entry).__name__: entry for entry in LOSSES if entry.launches}
ONE_OF_EACH.pop("linear_cross_entropy")


def test_every_definition_is_listed_once() -> None:
    """The table of the comparison with PyTorch is written by hand."""
    from tests.torch.functions.losses import LOSSES as WRITTEN_BY_HAND

    names, expected = [entry.name for entry in LOSSES], {row.name for row in WRITTEN_BY_HAND} | OWN_ARGUMENTS
    assert not set(names) - expected, (
        "give the new ones a row in tests/torch/functions/losses.py, or, if PyTorch does not have them, name them in "
        "OWN_ARGUMENTS of this file"
    )
    assert not expected - set(names), "nkilib/experimental/loss/registry.py has no row of them"
    assert len(names) == len(set(names)), "two rows have one name"


@every_entry
def test_a_loss_has_kernels_with_guarantees_that_are_verified(entry: Loss) -> None:
    for kernel, direction in ((entry.forward, "forward"), (entry.backward, "backward")):
        name = kernel.__name__
        assert name.removeprefix("extended_") == f"{entry.name}_{direction}"
        assert getattr(loss, name, None) is kernel, f"export {name} in nkilib/experimental/loss/__init__.py"
        assert public_kernels()[name] is kernel
        assert guarantee_of(kernel) is not None, f"{name}: state its guarantee where it is made launchable"
        assert kernel in CASES, f"{name}: give it cases in nkilib/verify/kernels"
        is_inline = hasattr(inline, name) or name.startswith("extended_")
        assert is_inline, f"name {name} in nkilib/experimental/loss/inline.py"


@every_entry
def test_a_loss_has_its_function_and_module_of_pytorch(entry: Loss) -> None:
    import torch.nn
    import torch.nn.functional as F

    import nkilib.torch

    for name in (entry.name, entry.module):
        assert hasattr(nkilib.torch, name), f"export {name} in nkilib/torch/__init__.py"
    ours = inspect.signature(getattr(nkilib.torch, entry.name)).parameters
    assert issubclass(getattr(nkilib.torch, entry.module), torch.nn.Module)
    assert set(entry.options) <= ours.keys() and "reduction" in ours
    if entry.name in OWN_ARGUMENTS:
        return
    assert set(entry.differentiated) <= ours.keys()
    assert hasattr(F, entry.name), (
        f"{entry.name} must be a loss of torch.nn.functional, with which its tests compare, or be in OWN_ARGUMENTS"
    )
    theirs = inspect.signature(getattr(F, entry.name)).parameters
    positional = [item for item in ours.values() if item.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [entry.name for entry in positional] == [name for name in theirs if name not in LEGACY]
    for element in positional:
        assert element.default == theirs[element.name].default, element.name
    built = inspect.signature(getattr(nkilib.torch, entry.module)).parameters
    expected = set(inspect.signature(getattr(torch.nn, entry.module)).parameters) - LEGACY
    assert expected <= built.keys()


@every_entry
def test_a_loss_has_its_docs_and_its_tests(entry: Loss) -> None:
    is_on_page = f"| [`{entry.name}`]({page_of(entry.family)}.md#{entry.name}) |" in PAGE
    assert is_on_page, "run `python -m tools.write_tables`"
    for place in entry.tests:
        sources = "".join(path.read_text(encoding="utf-8") for path in (CHECKOUT / place).rglob("*.py"))
        goes_through_a_table = "verify.kernels.elementwise import ENTRIES" in sources
        has_tests = "def test_" in sources and (entry.name in sources or goes_through_a_table)
        assert has_tests, f"give {entry.name} a test in {place}"


def test_the_faces_have_the_kernels_of_the_registry_and_those_named_here() -> None:
    """One is launched, the other one is called from NKI code."""
    kernels = {name for row in LOSSES for name in (row.forward.__name__, row.backward.__name__)} | BESIDE
    launched = {name for name in loss.__all__ if name.endswith(DIRECTIONS)}
    assert launched == kernels, "compare nkilib/experimental/loss/__init__.py with registry.py beside it"
    called = {name for name in (*inline.__all__, *extended_inline.__all__) if name.endswith(DIRECTIONS)}
    assert called == kernels, "compare nkilib/experimental/loss/inline.py"


def test_the_page_has_the_table_that_is_printed() -> None:
    is_on_page = overview() in PAGE
    assert is_on_page, "run `python -m tools.write_tables`"


@pytest.mark.parametrize("family", Family)
def test_the_page_of_a_family_has_what_is_printed(family: Family) -> None:
    """But for the times, which the sweep holds."""
    page = (REFERENCE / f"{page_of(family)}.md").read_text(encoding="utf-8")
    is_on_page = entries(family) in page
    assert is_on_page, "run `python -m tools.write_tables`"


def test_what_is_printed_of_a_loss_is_all_that_its_entry_states() -> None:
    """Semicolons separate what becomes a list of its own."""
    (entry,) = (entry for entry in LOSSES if entry.name == "multi_margin_loss")
    printed = entries(entry.family)
    section = printed.partition("### `multi_margin_loss`\n")[2].partition("\n### ")[0]
    words = section.replace("\\", "").split()
    for text in (entry.formula, entry.derivative, entry.edges, entry.differences):
        clauses = [clause.split() for clause in text.split("; ")]
        assert all(" ".join(clause) in " ".join(words) for clause in clauses), text
    assert max(map(len, section.splitlines())) <= 88


def test_times_are_checked_against_little_more_than_they_are() -> None:
    """Goals are near the page's figures, which the sweep compares with the model: loose ones hide a slower kernel."""
    launches = {(f"`{entry.name}`", launch.label): launch for entry in LOSSES for launch in entry.launches}
    rows = [tuple(line.strip("| ").split(" | ")) for line in TIMES_PAGE.splitlines()]
    timed = [row for row in rows if row[:2] in launches]
    assert len(timed) > 20
    for name, label, *cells in timed:
        for dtype, value in launches[name, label].bound.items():
            figure = float(cells[("bfloat16", "float32").index(dtype)].split(", ")[-1])
            assert figure <= value <= 1.2 * figure, (name, label, dtype)


@pytest.mark.parametrize("entry", ONE_OF_EACH.values(), ids=lambda entry: entry.name)
def test_a_launch_of_the_registry_runs(entry: Loss) -> None:
    """The sweep runs all of them."""
    launch = entry.launches[-1]
    assert over_bound(entry, launch, "bfloat16") <= launch.bound["bfloat16"]


@pytest.mark.sweep
@pytest.mark.parametrize(("entry", "launch", "dtype"), TIMES)
def test_modelled_times(entry: Loss, launch: ModelledLaunch, dtype: str) -> None:
    """Each launch stays within its limit for the time over the bound, and the page has the figure."""
    result = over_bound(entry, launch, dtype)
    assert result <= launch.bound[dtype]
    assert f", {result:.2f}" in TIMES_PAGE
