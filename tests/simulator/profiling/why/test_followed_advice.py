# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Who follows the first advice of each profile gets the saving that it states, the same results, and near the bound.

Kernels of the table of measurements are changed by code: engines by patched calls, and fusions in their source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.measurements import kernels
from benchmarks.measurements.modelled import _argument as argument_of
from benchmarks.measurements.table import Measurement, OwnKernel, measurements
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec, using
from nkilib.simulator.profiling.why.facts import Finding
from tests.simulator.profiling.why.plain_kernels import KERNELS, PlainKernel

ROWS, COLUMNS = 4096, 2048
NEAR_BOUND = 1.3


def kernel_of(text: str, path: Path) -> Any:
    path.write_text(text, encoding="utf-8")
    found = spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.kernel


def versions(plain: PlainKernel, folder: Path) -> Iterator[Any]:
    """The kernel, and what each of the changes makes of it."""
    text = plain.source
    yield kernel_of(text, folder / "step_0.py")
    for number, step in enumerate(plain.steps, 1):
        for old, new in step.edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        yield kernel_of(text, folder / f"step_{number}.py")


def profiled(kernel: Any, plain: PlainKernel, rows: int = ROWS) -> Profile:
    return profile(kernel[2], *(spec((rows if has_all else 1, COLUMNS), nl.bfloat16) for has_all in plain.rows))


@pytest.mark.parametrize("name", KERNELS)
def test_each_change_saves_what_the_first_advice_says_until_none_is_left(name: str, tmp_path: Path) -> None:
    plain = KERNELS[name]
    profiles = [profiled(kernel, plain) for kernel in versions(plain, tmp_path)]
    for before, after, step in zip(profiles, profiles[1:], plain.steps, strict=False):
        first = before.why[0]
        assert first.is_advice and first.about == step.about
        saved_us = before.time_us - after.time_us
        assert saved_us == pytest.approx(first.saved_us, rel=0.15)
    last = profiles[-1]
    assert not any(finding.is_advice for finding in last.why)
    assert last.fraction_of_bound is not None
    if last.fraction_of_bound > NEAR_BOUND:
        assert last.why[0].about == "busiest engine"


@pytest.mark.parametrize("name", KERNELS)
def test_each_version_computes_the_same(name: str, tmp_path: Path) -> None:
    plain, rng = KERNELS[name], np.random.default_rng(0)
    inputs = [rng.standard_normal((512 if has_all else 1, 64), np.float32) for has_all in plain.rows]
    expected = plain.reference(*(array.astype(np.float64) for array in inputs))
    for kernel in versions(plain, tmp_path):
        with using(strict=True, identical_writes="ignore"):
            np.testing.assert_allclose(kernel[2](*inputs), expected, rtol=2e-5, atol=1e-6)


def test_the_first_kernel_of_a_newcomer_gets_to_less_than_half_by_fusions(tmp_path: Path) -> None:
    """RMS norm of [512, 2048] on two cores, in which Vector is busy 71% of the time."""
    plain = KERNELS["rms_norm"]
    kernels = versions(plain, tmp_path)
    plainly, _, fused, *_ = (profiled(kernel, plain, rows=512) for kernel in kernels)
    assert [finding.about for finding in plainly.why][:2] == ["fusion", "fusion"]
    assert "busiest engine" in [finding.about for finding in plainly.why]
    assert fused.time_us < 0.5 * plainly.time_us


def advised(row: Measurement) -> Iterator[tuple[Finding, float]]:
    """The advice that code can follow for a row of the table, with the time that it saves."""
    assert isinstance(row.kernel, OwnKernel)
    name = row.kernel.function
    (call,) = row.calls
    arguments, keywords = [argument_of(value) for value in call], {k: argument_of(v) for k, v in row.keywords.items()}

    def time_us(module: ModuleType) -> float:
        with using(target=row.hardware):
            return profile(getattr(module, name), *arguments, **keywords).time_us

    with using(target=row.hardware):
        before = profile(getattr(kernels, name), *arguments, **keywords)
    for finding in before.why:
        if finding.about == "fusion" and "negative" not in "".join(finding.calls):
            changed = with_lines(dict(zip(finding.places, (None, " ; ".join(finding.calls)), strict=True)))
        elif finding.about == "engine" and not finding.calls:
            changed = on_engine(finding)
        else:
            continue
        yield finding, before.time_us - time_us(changed)


def with_lines(calls: dict[str, str | None]) -> ModuleType:
    """The module of the table's kernels with other calls in place of those at some lines; None stands for no call."""
    path = Path(kernels.__file__)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        place = f"{path.name}:{node.lineno}" if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
        if place in calls:
            assert isinstance(node, ast.Expr)
            new = calls[place]
            node.value = ast.Constant(None) if new is None else ast.parse(new, mode="eval").body
    return module_of(tree)


def module_of(tree: ast.Module) -> ModuleType:
    module = ModuleType(kernels.__name__)
    module.__file__ = kernels.__file__
    exec(compile(ast.fix_missing_locations(tree), kernels.__file__, "exec"), module.__dict__)
    return module


def on_engine(finding: Finding) -> ModuleType:
    """The module with the call of a finding on another engine; every second one by a counter for each core."""
    path = Path(kernels.__file__)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    engine = re.search(r"engine=nisa\.engine\.(\w+)", finding.text)
    assert engine is not None
    chosen = f"nisa.engine.{engine[1]}"
    if "every second call" in finding.text:
        chosen = f"{chosen} if next(TURNS[nl.program_id(0)]) % 2 else nisa.engine.vector"
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and f"{path.name}:{node.lineno}" == finding.place:
            assert isinstance(node.value, ast.Call)
            node.value.keywords.append(ast.keyword("engine", ast.parse(chosen, mode="eval").body))
    tree.body += ast.parse("import itertools\nTURNS = [itertools.count(), itertools.count()]").body
    return module_of(tree)


@pytest.mark.parametrize("function", ["unfused_attention", "silu_by_parts"])
def test_advice_for_kernels_of_the_measurements_saves_what_it_says(function: str) -> None:
    rows = [row for row in measurements() if isinstance(row.kernel, OwnKernel) and row.kernel.function == function]
    followed = list(advised(min(rows, key=lambda row: str(row.calls))))
    assert followed
    for finding, saved_us in followed:
        assert saved_us == pytest.approx(finding.saved_us, rel=0.15), finding
