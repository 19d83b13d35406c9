# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The log has the plans that the kernels of a call took."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.fuzz.call import Call, Results
from benchmarks.fuzz.draw import SMALL, Draw
from benchmarks.fuzz.families import distillation, softmax
from benchmarks.fuzz.one_call import run_call
from benchmarks.fuzz.plans import CHOOSERS, described_plan, recorded
from nkilib.experimental.softmax import choose_softmax_tiling
from nkilib.experimental.softmax.column_plan import Layout
from nkilib.torch import kl_div

SEED = 2713


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((300, 400), "softmax of rows"),
        ((3, 40, 50), "softmax of short columns"),
        ((3, 700, 50), "softmax of columns"),
    ],
    ids=str,
)
def test_softmax_by_the_kind_of_its_columns(shape: tuple[int, ...], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "_shape", lambda draw: (shape, 1))
    monkeypatch.setattr(softmax, "laid_out", lambda draw, tensor: (tensor, "contiguous"))
    line = run_call(SEED, 0, SMALL, ("softmax",))
    assert not line.failures and line.plans.keys() == {name, f"backward of {name}"}
    if name == "softmax of columns":
        plan = line.plans["softmax of columns"][0]["plan"]
        assert plan["layout"] in [layout.value for layout in Layout] and not plan["is_read_twice"]
    json.dumps(line.plans)


def test_it_is_the_plan_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "_shape", lambda draw: ((3, 20_000), 1))
    monkeypatch.setattr(softmax, "dtype_of", lambda draw: ("fp32", torch.float32))
    monkeypatch.setattr(Draw, "chance", lambda self, probability: False)
    line = run_call(SEED, 0, SMALL, ("softmax",))
    taken = [plan["piece_size"] for plan in line.plans["softmax of rows"]]
    assert taken == [choose_softmax_tiling((3, 20_000), 1, "float32", "forward").chunk_size]


def test_a_mixture_has_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "_labels", lambda draw, shape: None)
    for number in range(20):
        line = run_call(SEED, number, SMALL, ("distillation_loss",))
        if line.settings["beta"] in (0.5, 0.1):
            assert line.plans.keys() == {
                "tiling of a distillation",
                "mixture",
                "chunks at a time of a mixture's gradient",
            }
            return
    raise AssertionError("no mixture was drawn")


def test_a_call_that_fails_has_its_plans_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Call.run

    def failing(self: Call, draw: Draw) -> Results:
        run(self, draw)
        raise AssertionError("both passes wait for buffers")

    monkeypatch.setattr(Call, "run", failing)
    line = run_call(SEED, 0, SMALL, ("softmax",))
    assert line.failures and line.plans


def test_nothing_is_recorded_outside() -> None:
    with recorded() as plans:
        pass
    kl_div(torch.zeros(3), torch.zeros(3), reduction="sum")
    assert plans == {}
    with recorded() as plans:
        for _ in range(2):
            kl_div(torch.zeros(3), torch.zeros(3), reduction="sum")
    assert list(plans) == ["tiling of elements"] and len(plans["tiling of elements"]) == 1
    assert plans.keys() <= CHOOSERS.keys()


def test_how_a_plan_is_written() -> None:
    assert described_plan((1, 2, 3, 4)) == [1, 2, 3, 4]
    assert described_plan([0] * 5) == "5 of them"
    assert described_plan([[0] * 7, [0] * 2]) == [7, 2]
    for layout in Layout:
        assert described_plan(layout) == layout.value
    written: Any = described_plan(choose_softmax_tiling((3, 50), 1, "float32", "forward"))
    assert written == {"chunk_size": 1024}
