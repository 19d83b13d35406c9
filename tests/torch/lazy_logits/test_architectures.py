# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Causal language model classes of ``transformers`` beside their fused selves, and the page that lists them all."""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from nkilib.torch import fuse_linear_loss
from tests.torch.lazy_logits import architecture_outcomes
from tests.torch.lazy_logits.architecture_outcomes import (
    COMPUTED,
    NOT_BUILT,
    RIGHT,
    STOCK_FAILS,
    WRONG,
    Difference,
    Outcome,
    Step,
    difference,
    in_bfloat16,
    outcome_of,
    outcomes_of,
    step_in_float64,
    step_of,
)
from tests.torch.lazy_logits.architectures import batch, class_names, tiny_model
from tools.write_fused_models import CHUNKS, PAGE, chunk, release, rows

if find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

CLASSES = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",  # tied embeddings, learnt positions
    "MixtralForCausalLM",  # experts
    "BertLMHeadModel",  # a bias, and layers between trunk and output layer
    "CohereForCausalLM",  # multiplied logits
    "DeepseekV3ForCausalLM",  # latent attention, groups of experts
    "Gemma2ForCausalLM",  # capped logits
    "Gemma4ForConditionalGeneration",  # a part for images
    "GptOssForCausalLM",  # attention sinks
    "GraniteForCausalLM",  # divided logits
    "JambaForCausalLM",  # attention and a state space
    "MambaForCausalLM",  # a state space
    "OPTForCausalLM",
    "Qwen3NextForCausalLM",  # linear attention
    "WhisperForCausalLM",  # the decoder of a pair
)


@pytest.mark.parametrize("name", CLASSES)
def test_a_step_is_that_of_the_stock_model_with_no_logits(name: str) -> None:
    outcome = outcome_of(name)
    assert (outcome.result, outcome.detail) == (RIGHT, ""), outcome


def test_the_page_lists_every_class_of_the_release() -> None:
    if version("transformers") != release():
        pytest.skip("another release of transformers")
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert list(listed) == class_names()
    kinds = {kind: sum(text.startswith(kind) for text in listed.values()) for kind in KINDS}
    assert sum(kinds.values()) == len(listed)
    trained = kinds[RIGHT] + kinds[COMPUTED] + kinds[WRONG]
    assert trained >= 0.85 * len(listed) and kinds[RIGHT] >= 0.9 * trained and kinds[WRONG] == 0


KINDS = (RIGHT, COMPUTED, WRONG, STOCK_FAILS, NOT_BUILT)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(CHUNKS))
def test_the_page_is_what_the_classes_give(part: int) -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [row for row in rows(outcomes_of(chunk(class_names(), part))) if row not in text]
    assert not missing, "python -m tools.write_fused_models writes the page"


def test_a_class_that_is_not_there_is_not_built() -> None:
    outcome = outcome_of("NobodyForCausalLM")
    assert outcome.result == NOT_BUILT and "NobodyForCausalLM" in outcome.detail


def test_a_result_that_differs_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture_outcomes, "fuse_linear_loss", partial(fuse_linear_loss, lse_square_scale=1e-4))
    outcome = outcome_of("LlamaForCausalLM")
    assert outcome.result == WRONG and outcome.detail.startswith("in float32")
    monkeypatch.setattr(architecture_outcomes, "fuse_linear_loss", partial(fuse_linear_loss, label_smoothing=0.05))
    model = tiny_model("LlamaForCausalLM").bfloat16()
    outcome = in_bfloat16(Outcome("LlamaForCausalLM", RIGHT), model, batch("LlamaForCausalLM"))
    assert outcome.result == WRONG and outcome.detail.startswith("in bfloat16")


_PROGRAM = """
import json, os, sys, time
for name in sys.argv[1:]:
    if name == "ends":
        os._exit(3)
    if name == "hangs":
        time.sleep(600)
    print(json.dumps({"name": name, "result": "right"}), flush=True)
"""


def test_a_class_that_ends_its_process_or_hangs_is_one_row() -> None:
    told: list[Outcome] = []
    names = ["a", "ends", "b", "hangs"]
    found = outcomes_of(names, told.append, program=(sys.executable, "-c", _PROGRAM), seconds=2.0)
    assert (
        found
        == told
        == [
            Outcome("a", RIGHT),
            Outcome("ends", STOCK_FAILS, "its process ended with 3"),
            Outcome("b", RIGHT),
            Outcome("hangs", STOCK_FAILS, "no end after 4 s"),
        ]
    )


def test_rows_say_why() -> None:
    outcomes = [
        Outcome("A", RIGHT),
        Outcome("A", RIGHT, "in float32"),
        Outcome("B", COMPUTED, "sort in a|b.py"),
        Outcome("C", STOCK_FAILS, "E: <x>"),
    ]
    assert list(rows(outcomes)) == [
        "| `A` | right |",
        "| `A` | right in float32 |",
        "| `B` | logits computed because of sort in a\\|b.py |",
        "| `C` | stock model fails: E: \\<x> |",
    ]


class _Casts(nn.Module):
    """A model that computes in float32 whatever its dtype is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1 / 3, 2 / 3]))

    def forward(self, inputs: torch.Tensor) -> torch.nn.Module:
        self.loss = ((inputs.to(torch.float32) * self.weight.float()).softmax(-1, dtype=torch.float32) ** 2).sum()
        return self


def test_a_reference_is_all_in_float64() -> None:
    made, inputs = _Casts(), torch.tensor([0.1, 0.7])
    exact = (inputs.double() * made.weight.detach().double()).softmax(-1).square().sum()
    step = step_in_float64(made, {"inputs": inputs})
    assert step.loss == exact and step_of(made, {"inputs": inputs}).loss != exact
    assert torch.get_default_dtype() == torch.float32


def test_differences_are_in_norm_and_say_what_is_further() -> None:
    def step(loss: float, *gradients: float) -> Step:
        named = {str(at): torch.tensor([number, 0.0], dtype=torch.float64) for at, number in enumerate(gradients)}
        return Step(torch.tensor(loss, dtype=torch.float64), named)

    exact = step(2.0, 4.0, 0.001)
    apart = difference(step(2.2, 4.4, 0.0012), exact)
    assert apart.loss == pytest.approx(0.1) and apart.gradients == pytest.approx({"0": 0.1, "1": 0.05}, rel=1e-3)
    assert apart.largest == pytest.approx(0.1)
    missing = difference(step(2.0, 4.0), exact)
    assert missing.gradients["1"] == pytest.approx(0.25, rel=1e-3), "a parameter without a gradient has zeros"
    with pytest.raises(ValueError, match="not finite"):
        difference(step(math.nan, 4.0, 0.001), exact)
    assert difference(exact, exact).whole == 0.0
    assert apart.whole == pytest.approx(0.1, rel=1e-3)


def test_a_step_is_no_further_as_a_whole_and_in_each_parameter() -> None:
    stock = Difference(0.1, 0.1, {"0": 0.1})
    assert Difference(0.2, 0.2, {"0": 0.4}).is_no_further(stock, 0.0)
    for further in (Difference(0.21, 0, {"0": 0}), Difference(0, 0.21, {"0": 0}), Difference(0, 0, {"0": 0.41})):
        assert not further.is_no_further(stock, 0.0) and further.is_no_further(stock, 0.41)
    by_luck = Difference(0.1, 0.1, {"0": 0.0})
    assert Difference(0, 0, {"0": 0.2}).is_no_further(by_luck, 0.0)
    assert not Difference(0, 0, {"0": 0.21}).is_no_further(by_luck, 0.0)


def test_tiny_models_have_few_parameters_and_no_dropout() -> None:
    model = tiny_model("LlamaForCausalLM")
    assert model.training and model.num_parameters() < 200_000 and model.config.attention_dropout == 0.0
