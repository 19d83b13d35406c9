# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Lazy logits that are divided by a tensor of temperatures: what stays lazy, beside the stock model, and what kernels
compute of it, beside float64.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import cross_entropy, fused_calls
from nkilib.torch.lazy_logits.logits import LazyLogits
from tests.torch.inputs import make_logits, make_targets
from tests.torch.lazy_logits.models import BATCH, LENGTH, VOCABULARY, Use, both, inputs
from tests.torch.lazy_logits.test_form import BUDGET, MASK, ROWS, dense
from tests.torch.telling import UNIT

IDS = make_targets(BATCH, LENGTH, classes=VOCABULARY, seed=4)
ONE = torch.tensor(0.7)
OF_SAMPLES = torch.tensor([0.7, 1.6]).view(BATCH, 1, 1)
OF_TOKENS = (make_logits(BATCH, LENGTH, 1, seed=8, spread=1.0).abs() + 0.5).clamp(max=2.0)
# Logits below 40, divided by 0.5 at least; sums over ten positions.
VALUE_BUDGET = 64 * UNIT * 40 * BATCH * LENGTH
GRADIENT_BUDGET = 32 * UNIT

LAZY: dict[str, Use] = {
    "of one element": lambda z: z / ONE,
    "of one element with dimensions": lambda z: torch.div(z, ONE.view(1, 1)),
    "of one integer": lambda z: z / torch.tensor(2),
    "times one element": lambda z: z * (1.0 / ONE),
    "one element times": lambda z: ONE * z,
    "of samples": lambda z: z / OF_SAMPLES,
    "of samples, named": lambda z: torch.true_divide(z, other=OF_SAMPLES),
    "of tokens": lambda z: z / OF_TOKENS,
    "of integers": lambda z: z / torch.tensor([1, 2]).view(BATCH, 1, 1),
    "of columns": lambda z: z / OF_TOKENS[0],
    "of bfloat16": lambda z: z / OF_TOKENS.bfloat16(),
    "of rows": lambda z: z.flatten(0, 1) / OF_TOKENS.flatten()[:, None],
    "of classes in the middle": lambda z: z.transpose(1, 2) / OF_TOKENS.transpose(1, 2),
    "twice": lambda z: z / OF_TOKENS / OF_SAMPLES,
    "twice, one element last": lambda z: z / OF_TOKENS / ONE,
    "after a scale": lambda z: (z * 0.5) / OF_TOKENS,
    "before a scale": lambda z: z / OF_TOKENS * 0.5,
    "after a cap": lambda z: 5.0 * torch.tanh(z / 5.0) / OF_TOKENS,
    "after a cap, before a scale": lambda z: z.tanh() / OF_TOKENS * 3.0,
    "before a cast": lambda z: (z / OF_TOKENS).float(),
    "before fewer classes": lambda z: (z / OF_TOKENS)[..., :30],
    "before a softmax": lambda z: (z / OF_TOKENS).softmax(-1),
    "before p log p": lambda z: _p_log_p(z / OF_TOKENS),
    "before a shift": lambda z: (z / OF_TOKENS)[:, :-1],
    "before a row": lambda z: (z / OF_TOKENS)[1],
    "before a mask": lambda z: (z / OF_TOKENS)[MASK],
    "before indices": lambda z: (z / OF_TOKENS)[ROWS],
    "before a view": lambda z: (z / OF_TOKENS).view(-1, VOCABULARY),
    "before a view, of samples": lambda z: (z / OF_SAMPLES).reshape(-1, VOCABULARY),
    "before a permute": lambda z: (z / OF_TOKENS).permute(2, 1, 0),
    "before an unsqueeze": lambda z: (z / OF_TOKENS).unsqueeze(1),
    "before a squeeze": lambda z: (z / OF_TOKENS)[:1].squeeze(0),
    "before a select": lambda z: (z / OF_TOKENS).select(1, 2),
    "before an index_select": lambda z: (z / OF_SAMPLES).index_select(0, ROWS),
    "before a selection, of one element": lambda z: (z / ONE)[MASK],
    "of each row, joined": lambda z: torch.cat([z[:1] / OF_TOKENS[:1], z[1:] / OF_SAMPLES[1:]]),
    "of one element each, stacked": lambda z: torch.stack([z[0] / ONE, z[1] / OF_SAMPLES[1]]),
    "of one element, split and joined": lambda z: torch.cat((z / ONE).split(2, dim=1), dim=1),
    "split and joined": lambda z: torch.cat((z / OF_TOKENS).split(2, dim=1), dim=1),
    "of rows, stacked": lambda z: torch.stack([row / t for row, t in zip(z, OF_TOKENS, strict=True)], dim=1),
    "unbound": lambda z: (z / OF_TOKENS).unbind(1)[2],
    "in place": lambda z: z.div_(OF_TOKENS),
    "/=": lambda z: z.__itruediv__(OF_SAMPLES),
    "detached": lambda z: (z / OF_TOKENS).detach(),
    "of a detached tensor": lambda z: z / OF_TOKENS.clone().requires_grad_().detach(),
}


def _p_log_p(z: Any) -> Any:
    return z.softmax(-1) * z.log_softmax(-1)


@pytest.mark.parametrize("name", LAZY)
def test_a_division_by_temperatures_gives_lazy_logits(name: str) -> None:
    expected, ours = both(bias=True).results(LAZY[name])
    assert isinstance(ours, LazyLogits)
    assert (ours.shape, ours.dtype, ours.requires_grad) == (expected.shape, expected.dtype, expected.requires_grad)
    assert (dense(ours.form) - expected).abs().max() <= 2 * BUDGET
    assert torch.equal(ours.compute(), expected), "computed by the functions that were called"


@pytest.mark.parametrize("name", LAZY)
def test_dtypes_are_those_of_torch(name: str) -> None:
    ignored = both(dtype=torch.bfloat16, on_compute="ignore")
    expected, ours = ignored.results(LAZY[name])
    assert ours.dtype == expected.dtype
    assert torch.equal(ours.compute() if isinstance(ours, LazyLogits) else ours, expected)


COMPUTED: dict[str, Use] = {
    "with gradient": lambda z: z / ONE.clone().requires_grad_(),
    "of tokens with gradient": lambda z: z / OF_TOKENS.clone().requires_grad_(),
    "before a cap": lambda z: (z / OF_TOKENS).tanh(),
    "in a sum": lambda z: z / OF_TOKENS + z,
    "of classes": lambda z: z / torch.full((VOCABULARY,), 2.0),
    "of each logit": lambda z: z / torch.full((BATCH, LENGTH, VOCABULARY), 2.0),
    "of more dimensions": lambda z: z / OF_SAMPLES[None],
    "of more positions": lambda z: z[:, :1] / OF_TOKENS,
    "of complex numbers": lambda z: (z / torch.tensor(2.0 + 0.0j)).real,
    "of bools": lambda z: z / torch.tensor(True),
    "of float64": lambda z: z / OF_TOKENS.double(),
    "out of range": lambda z: z / torch.tensor([1.0, 1e-9]).view(BATCH, 1, 1),
    "of zeros": lambda z: (z / torch.zeros(BATCH, 1, 1)).isnan(),
    "negative": lambda z: z / torch.tensor(-1.0),
    "out of range together": lambda z: z / torch.tensor(1e-4) / torch.tensor(1e-4),
    "times a mask": lambda z: z * MASK[..., None].float(),
    "times inverse temperatures": lambda z: z * OF_TOKENS.reciprocal(),
    "times zero": lambda z: z * torch.tensor(0.0),
    "rounded down": lambda z: torch.div(z, OF_TOKENS, rounding_mode="floor"),
    "log-probabilities": lambda z: z.log_softmax(-1) / OF_TOKENS,
    "under a number": lambda z: 1.0 / (z.square() + 1.0),
    "another": lambda z: (z / OF_TOKENS).softmax(-1) * (z / OF_SAMPLES).log_softmax(-1),
    "joined with none": lambda z: torch.cat([z / OF_TOKENS, z]),
    "a dtype of its own in place": lambda z: z.bfloat16().div_(OF_TOKENS),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_everything_else_is_what_torch_gives_for_the_logits(name: str) -> None:
    expected, ours = both(on_compute="ignore").results(COMPUTED[name])
    assert isinstance(ours, Tensor) and ours.dtype == expected.dtype
    assert torch.equal(ours, expected)


def _grpo(z: Any) -> Any:
    """A loss of a policy whose samples were drawn at temperatures of their own, without the prompt's first token."""
    logprob = (z / OF_SAMPLES.to(z.dtype))[:, :-1].log_softmax(-1).gather(-1, IDS[:, 1:, None]).squeeze(-1)
    ratio = torch.exp(logprob - logprob.detach())
    advantage = make_logits(BATCH, 1, seed=6).to(logprob.dtype)
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def _dpo(z: Any) -> Any:
    scores = (z / OF_SAMPLES.to(z.dtype)).log_softmax(-1).gather(2, IDS[..., None]).squeeze(2).sum(-1)
    return -F.logsigmoid(0.1 * (scores[0] - scores[1]))


def _engine_of_verl(z: Any) -> Any:
    """Temperatures of packed tokens, in place, with an entropy, as verl's FSDP engine has them."""
    packed = z.view(1, -1, VOCABULARY).squeeze(0)
    packed = packed / OF_TOKENS.view(-1).clamp(min=1e-8).unsqueeze(-1).to(packed.dtype)
    logprob = packed.log_softmax(-1).gather(-1, IDS.view(-1, 1)).squeeze(-1)
    p = packed.softmax(-1)
    return (logprob + 0.3 * (packed.logsumexp(-1) - (p * packed).sum(-1))).mean()


USES: dict[str, Use] = {
    "GRPO": _grpo,
    "DPO": _dpo,
    "verl": _engine_of_verl,
    "cross_entropy": lambda z: F.cross_entropy((z / OF_TOKENS.to(z.dtype)).flatten(0, 1), IDS.flatten()),
    "of one element": lambda z: F.cross_entropy((z / ONE).flatten(0, 1), IDS.flatten()),
    "of a cap": lambda z: F.cross_entropy((5 * (z / 5).tanh() / OF_TOKENS.to(z.dtype)).transpose(1, 2), IDS),
    "label smoothing": lambda z: (z / OF_TOKENS.to(z.dtype)).log_softmax(-1).sum(-1).mean(),
    "logits of ids": lambda z: (z / OF_TOKENS.to(z.dtype)).gather(-1, IDS[..., None]).square().sum(),
}


@pytest.mark.parametrize("name", USES)
def test_value_and_gradients_are_those_of_float64(name: str) -> None:
    models = both(bias=True)
    exact = copy.deepcopy(models.stock).double()
    expected, result = USES[name](exact(inputs().double())), USES[name](models.ours(inputs()))
    expected.backward()
    result.backward()
    assert abs(result.item() - expected.item()) <= VALUE_BUDGET
    for ours, theirs in zip(models.ours.parameters(), exact.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= GRADIENT_BUDGET * theirs.grad.norm()
        assert (ours.grad + theirs.grad).norm() > theirs.grad.norm() > 0, "a flipped sign would show"
    assert not fused_calls(models.ours).computed and fused_calls(models.ours).fused


def test_argmax_and_entropy_of_a_trained_policy() -> None:
    expected, ours = both().results(lambda z: ((z / OF_TOKENS).argmax(-1), -_p_log_p(z / OF_SAMPLES).sum(-1)))
    assert torch.equal(ours[0], expected[0])
    assert (ours[1] - expected[1]).abs().max() <= 64 * UNIT * 40


def test_temperatures_that_change_later_are_those_of_the_division() -> None:
    models, temperatures = both(), OF_TOKENS.clone()
    lazy, other = models.ours(inputs()) / temperatures, models.ours(inputs()).div_(temperatures)
    expected = models.stock(inputs()) / temperatures
    temperatures.fill_(9.0)
    for ours in (lazy, other):
        assert (ours.logsumexp(-1) - expected.logsumexp(-1)).abs().max() <= 64 * UNIT * 40
        assert torch.equal(ours.compute(), expected)


@pytest.mark.parametrize("temperature", [ONE, OF_SAMPLES[..., 0], OF_TOKENS[..., 0]])
def test_cross_entropy_of_nkilib_takes_temperatures_too(temperature: Tensor) -> None:
    models = both()
    for class_dim, use in ((-1, lambda z: 2.0 * z), (1, lambda z: z.transpose(1, 2) / OF_SAMPLES)):
        expected, ours = models.results(
            lambda z, use=use, dim=class_dim: cross_entropy(use(z), IDS, class_dim=dim, temperature=temperature)
        )
        assert abs(ours.item() - expected.item()) <= VALUE_BUDGET
    ignoring = both(on_compute="ignore")
    expected, ours = ignoring.results(lambda z: cross_entropy(z / ONE, IDS, class_dim=-1, logit_softcap=2.0))
    assert torch.equal(ours, expected) and fused_calls(ignoring.ours).computed, "a cap after a temperature"


@pytest.mark.slow
def test_a_compiled_loss(compile_afresh: None) -> None:
    def step(model: Any, batch: Tensor, temperatures: Tensor) -> Tensor:
        logits = model(batch) / temperatures
        return -logits[:, :-1].log_softmax(-1).gather(-1, IDS[:, 1:, None]).mean() + 0.1 * logits.logsumexp(-1).mean()

    models = both()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for temperatures in (OF_SAMPLES, OF_SAMPLES + 0.5):  # one graph of both
        results = [step(models.stock, inputs(), temperatures), compiled(models.ours, inputs(), temperatures)]
        for model, result in zip((models.stock, models.ours), results, strict=True):
            model.zero_grad()
            result.backward()
        assert abs(results[0].item() - results[1].item()) <= 1e-5
        for theirs, ours in zip(models.stock.parameters(), models.ours.parameters(), strict=True):
            assert (ours.grad - theirs.grad).norm() <= 1e-5 * theirs.grad.norm()
    with pytest.raises(ValueError, match=r"temperature must be from 1e-06 to 1000000\.0 at every position"):
        compiled(models.ours, inputs(), OF_SAMPLES - OF_SAMPLES)
