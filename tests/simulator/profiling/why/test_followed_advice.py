# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Who follows the first advice of each profile gets the saving that it states, the same results, and near the bound."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec, using
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
