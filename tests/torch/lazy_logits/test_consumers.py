# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that kernels compute from lazy logits: value, dtype, shape and gradients beside float64, and no logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nkilib.torch
from nkilib.torch import (
    cross_entropy,
    distillation_loss,
    fuse_linear_loss,
    fused_calls,
    log_softmax,
    nll_loss,
    softmax,
    token_scores,
    vocab_parallel_cross_entropy,
)
from nkilib.torch.functions.cross_entropy import functional
from nkilib.torch.lazy_logits.logits import CONSUMERS
from tests.torch.inputs import make_logits, make_targets, make_weight
from tests.torch.lazy_logits.models import BATCH, FEATURES, LENGTH, VOCABULARY, Use, both, inputs, model
from tests.torch.operator_log import OperatorLog
from tests.torch.telling import UNIT

TARGET = make_targets(BATCH, LENGTH, classes=VOCABULARY, ignored=-100)
IDS = make_targets(BATCH, LENGTH, classes=VOCABULARY, seed=4)
SEVERAL = make_targets(BATCH, LENGTH, 3, classes=VOCABULARY, seed=5)
UNIFORM = torch.full((BATCH, LENGTH, VOCABULARY), 1.0 / VOCABULARY)
MASK = (TARGET != -100).float()
# A loss: see tests.torch.telling, for logits below 40 and sums over ten positions.
VALUE_BUDGET = 32 * UNIT * 40 * BATCH * LENGTH
# Of a parameter's gradient, as a share of its norm: two products and the gradient of the logits.
GRADIENT_BUDGET = 32 * UNIT


def _dpo(z: Tensor) -> Tensor:
    scores = z[:, :-1].log_softmax(-1).gather(2, IDS[:, 1:, None]).squeeze(2).sum(-1)
    return -F.logsigmoid(0.1 * (scores[0] - scores[1]))


def _grpo(z: Tensor) -> Tensor:
    logprob = torch.gather((z / 0.7).log_softmax(-1), -1, IDS.unsqueeze(-1)).squeeze(-1)
    ratio = torch.exp(logprob - logprob.detach())
    advantage = make_logits(BATCH, LENGTH, seed=6).to(logprob.dtype)
    return -(torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * MASK).sum() / MASK.sum()


def _label_smoother(z: Tensor) -> Tensor:
    """As the Trainer of transformers smooths."""
    log_probs = -F.log_softmax(z, dim=-1)
    padding = TARGET.unsqueeze(-1).eq(-100)
    nll = log_probs.gather(dim=-1, index=TARGET.clamp(min=0).unsqueeze(-1)).masked_fill(padding, 0.0)
    smoothed = log_probs.sum(dim=-1, keepdim=True, dtype=torch.float64 if z.dtype == torch.float64 else torch.float32)
    active = padding.numel() - padding.long().sum()
    return 0.9 * nll.sum() / active + 0.1 * smoothed.masked_fill(padding, 0.0).sum() / (active * VOCABULARY)


def _selective(z: Tensor) -> Tensor:
    """As TRL takes log-probabilities of float32 logits."""
    chosen = torch.gather(z, dim=-1, index=IDS.unsqueeze(-1)).squeeze(-1)
    return (chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in z])).sum()


def _entropy(z: Tensor) -> Tensor:
    logps = F.log_softmax(z, dim=-1)
    return -(torch.exp(logps) * logps).sum(-1).mean()


def _entropy_of_logits(z: Tensor) -> Tensor:
    p = F.softmax(z, dim=-1)
    return (torch.logsumexp(z, dim=-1) - torch.sum(p * z, dim=-1)).sum()


USES: dict[str, Use] = {
    "a loop of its own": lambda z: F.cross_entropy(
        z[:, :-1].contiguous().view(-1, VOCABULARY), TARGET[:, 1:].flatten()
    ),
    "of keywords": lambda z: F.cross_entropy(input=z.flatten(0, 1), target=TARGET.flatten(), reduction="sum"),
    "of a module": lambda z: nn.CrossEntropyLoss(label_smoothing=0.1)(
        (z.float() / 0.8).flatten(0, 1), TARGET.flatten()
    ),
    "of classes in the middle": lambda z: F.cross_entropy(z.transpose(1, 2), TARGET, reduction="none").square().sum(),
    "of class weights": lambda z: F.cross_entropy(
        z.flatten(0, 1), TARGET.flatten(), weight=make_weight(VOCABULARY).to(z.dtype)
    ),
    "of a cap": lambda z: F.cross_entropy(5.0 * (z / 5.0).tanh().view(-1, VOCABULARY), TARGET.view(-1)),
    "of fewer classes": lambda z: F.cross_entropy(z[..., :30].flatten(0, 1), TARGET.clamp(max=29).flatten()),
    "of chosen positions": lambda z: F.cross_entropy(z[TARGET != -100], TARGET[TARGET != -100]),
    "of chunks": lambda z: sum(
        F.cross_entropy(part.flatten(0, 1), ids.flatten(), reduction="sum")
        for part, ids in zip(z.chunk(2, dim=1), TARGET.chunk(2, dim=1), strict=True)
    ),
    "nll_loss": lambda z: F.nll_loss(z.log_softmax(-1).flatten(0, 1), TARGET.flatten()),
    "NLLLoss": lambda z: nn.NLLLoss(reduction="sum")(F.log_softmax(z.transpose(1, 2), dim=1), TARGET),
    "log-probabilities": lambda z: -(torch.gather(z.log_softmax(-1), -1, IDS.unsqueeze(-1)).squeeze(-1) * MASK).sum(),
    "of several ids": lambda z: z.log_softmax(-1).gather(-1, SEVERAL).square().sum(),
    "probabilities": lambda z: z.softmax(-1).gather(-1, SEVERAL).square().sum(),
    "logits of ids": lambda z: z.gather(2, SEVERAL).square().sum(),
    "logsumexp": lambda z: (z / 2).logsumexp(-1, keepdim=True).square().sum(),
    "z-loss": lambda z: (
        F.cross_entropy(z.flatten(0, 1), TARGET.flatten()) + 1e-2 * z.logsumexp(dim=(-1,)).square().mean()
    ),
    "DPO": _dpo,
    "GRPO": _grpo,
    "label smoothing of transformers": _label_smoother,
    "log-probabilities of TRL": _selective,
    "label smoothing by a mean": lambda z: -z.log_softmax(-1).mean(dim=-1).square().sum(),
    "log-probabilities of one position": lambda z: (z[1, 2].log_softmax(-1).sum(-1) / VOCABULARY).square(),
    "sums of logits": lambda z: (
        ((z / 2).sum(-1, keepdim=True) / VOCABULARY).square().sum() + z.sum(dtype=torch.float64).tanh()
    ),
    "means of logits": lambda z: z[:, 1:].mean(-1).square().sum() + z.mean().square(),
    "largest": lambda z: z.max(-1).values.square().sum() + torch.max(z.softmax(-1), dim=2, keepdim=True)[0].sum(),
    "entropy": _entropy,
    "entropy of logits": _entropy_of_logits,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", USES)
def test_value_and_gradients_are_those_of_float64(name: str, bias: bool) -> None:
    use = USES[name]
    models = both(bias)
    exact = copy.deepcopy(models.stock).double()
    expected = use(exact(inputs().double()))
    expected.backward()
    with OperatorLog() as log:
        result = use(models.ours(inputs()))
        result.backward()
    assert result.dtype == use(models.stock(inputs())).dtype and result.shape == expected.shape
    assert abs(result.item() - expected.item()) <= VALUE_BUDGET
    for ours, theirs in zip(models.ours.parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and theirs.grad.norm() > 0
        assert (ours.grad - theirs.grad).norm() <= GRADIENT_BUDGET * theirs.grad.norm()
        assert (ours.grad + theirs.grad).norm() > theirs.grad.norm(), "a flipped sign would show"
    assert not fused_calls(models.ours).computed and fused_calls(models.ours).fused
    shapes = [set(shape) for shape in log.shapes if len(shape) > 1]
    assert not any(shape & {VOCABULARY, 30} and FEATURES not in shape for shape in shapes), "no logits"


@pytest.mark.parametrize("name", ["a loop of its own", "of a cap", "log-probabilities", "entropy"])
def test_no_tensor_has_as_many_elements_as_the_logits(name: str) -> None:
    """The results of all operators are looked at, in forward and backward; of the stock model several are as large."""
    models, sizes = both(), []
    batch = make_logits(BATCH, LENGTH, FEATURES, seed=2, spread=1.0).repeat_interleave(32, 0)
    for made in (models.ours, models.stock):
        with OperatorLog() as log:
            logits = made(batch)
            of_all = F.cross_entropy(logits.flatten(0, 1), TARGET.repeat_interleave(32, 0).flatten())
            (of_all + USES[name](logits.unflatten(0, (BATCH, 32))[:, 0])).backward()
        sizes.append(max(torch.Size(shape).numel() for shape in log.shapes))
    assert sizes[0] < batch.shape[0] * LENGTH * VOCABULARY <= sizes[1]


@pytest.mark.parametrize("name", USES)
def test_results_have_the_dtype_that_torch_gives(name: str) -> None:
    expected, ours = both(dtype=torch.bfloat16).results(USES[name])
    assert ours.dtype == expected.dtype
    # Stock logits are rounded to bfloat16, and so is what is made of them.
    assert abs(ours.item() - expected.item()) <= 2.0**-4 * max(1.0, abs(expected.item()))


def test_autocast_is_that_of_the_output_layer() -> None:
    for is_of_loss in (True, False):
        models = both()
        results = []
        for trained in (models.stock, models.ours):
            with torch.autocast("cpu", torch.bfloat16):
                logits = trained(inputs())
            with torch.autocast("cpu", torch.bfloat16, enabled=is_of_loss):
                results.append(F.cross_entropy(logits.flatten(0, 1), TARGET.flatten()))
        assert results[0].dtype == results[1].dtype
        assert abs(results[0].item() - results[1].item()) <= 40 * 2.0**-9
        results[1].float().backward()
        assert models.ours.trunk.weight.grad is not None


def test_argmax_and_accuracy() -> None:
    models = both()
    expected, ours = models.results(lambda z: (z.argmax(-1), torch.argmax(z[:, 1:], dim=2, keepdim=True)))
    assert all(torch.equal(*pair) for pair in zip(ours, expected, strict=True))
    expected, ours = models.results(lambda z: z.log_softmax(-1).argmax(-1))
    assert torch.equal(ours, expected)
    for keepdim in (True, False):
        expected, ours = models.results(lambda z, keepdim=keepdim: z.max(-1, keepdim=keepdim))
        assert type(ours) is type(expected) and torch.equal(ours.indices, expected.indices)
        torch.testing.assert_close(ours.values, expected.values)


def test_logsumexp_after_gather_is_no_second_launch() -> None:
    models = both()
    logits = models.ours(inputs())
    logits.gather(-1, IDS[..., None])
    with OperatorLog() as log:
        lse = logits.logsumexp(-1)
        rows = torch.stack([row.logsumexp(-1) for row in logits])
        columns = torch.stack([column.logsumexp(-1) for column in logits.unbind(dim=1)], dim=1)
    assert not any("nkilib" in name for name in log.names)
    assert torch.equal(rows, lse) and torch.equal(columns, lse)
    assert (lse - models.stock(inputs()).logsumexp(-1)).abs().max() <= 32 * UNIT * 40


REFUSED: dict[str, Use] = {
    "probabilities of classes": lambda z: F.cross_entropy(
        z.flatten(0, 1), torch.full((BATCH * LENGTH, VOCABULARY), 1 / 37)
    ),
    "classes where torch has none": lambda z: F.cross_entropy(z, TARGET.new_zeros(BATCH, VOCABULARY)),
    "reduce": lambda z: F.nll_loss(z.log_softmax(-1).flatten(0, 1), TARGET.flatten(), reduce=False),
    "ids over positions": lambda z: z.gather(1, torch.zeros(BATCH, 2, VOCABULARY, dtype=torch.int64)),
    "fewer positions": lambda z: z.gather(-1, IDS[:, :2, None]),
    "argmax of all": lambda z: z.argmax(),
    "logsumexp of positions": lambda z: z.logsumexp(1),
    "a sum of positions": lambda z: z.sum(1),
    "a mean of capped logits": lambda z: z.tanh().mean(-1),
    "the largest of all": lambda z: z.max(),
    "the larger": lambda z: z.max(torch.zeros(())),
    "kl_div of probabilities": lambda z: F.kl_div(z.log_softmax(-1), torch.full((BATCH, LENGTH, VOCABULARY), 1 / 37)),
    "kl_div of each": lambda z: F.kl_div(
        z.log_softmax(-1), z.detach().log_softmax(-1), log_target=True, reduction="none"
    ),
}


@pytest.mark.filterwarnings("ignore:size_average and reduce", "ignore:reduction. 'mean'")
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_takes_is_what_torch_gives(name: str) -> None:
    models = both(on_compute="ignore")
    expected, ours = models.results(REFUSED[name])
    assert torch.equal(ours, expected) and fused_calls(models.ours).computed


@pytest.mark.parametrize("reduction", ["batchmean", "sum", "mean"])
@pytest.mark.filterwarnings("ignore:reduction. 'mean'")
def test_the_divergence_from_a_teacher_that_is_lazy_too(reduction: str) -> None:
    models = both()
    torch.manual_seed(1)
    teacher = model(bias=True)
    lazy_teacher = copy.deepcopy(teacher)
    fuse_linear_loss(lazy_teacher, head="head", evaluation=True, on_compute="raise")

    def loss(student: nn.Module, of_teacher: nn.Module, batch: Tensor) -> Tensor:
        with torch.no_grad():
            target = (of_teacher(batch) / 2).log_softmax(-1)
        return F.kl_div((student(batch) / 2).log_softmax(-1), target, log_target=True, reduction=reduction)

    exact = copy.deepcopy(models.stock).double()
    expected = loss(exact, teacher.double(), inputs().double())
    result = loss(models.ours, lazy_teacher, inputs())
    expected.backward()
    result.backward()
    assert abs(result.item() - expected.item()) <= VALUE_BUDGET
    for ours, theirs in zip(models.ours.parameters(), exact.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= GRADIENT_BUDGET * theirs.grad.norm()
    assert lazy_teacher.head.weight.grad is None


def test_cross_entropy_of_nkilib_takes_them_with_all_its_options() -> None:
    """Loss and accuracy are results of one launch; a cap and a temperature follow what is recorded."""
    models, target = both(), TARGET
    options: dict[str, Any] = {"class_dim": -1, "logit_softcap": 4.0, "temperature": 0.7, "lse_square_scale": 0.01}
    expected, ours = models.results(lambda z: cross_entropy(z * 0.5, target, return_outputs=True, **options))
    assert type(ours) is type(expected)
    for name, value, exact in zip(expected._fields, ours, expected, strict=True):
        assert value.shape == exact.shape and (value - exact).abs().max() <= 64 * UNIT * 40, name
    expected, ours = models.results(lambda z: cross_entropy(z, target, normalizer=torch.tensor(7.0), class_dim=-1))
    assert abs(ours.item() - expected.item()) <= VALUE_BUDGET
    of_positions = torch.linspace(0.5, 2.0, TARGET.numel()).reshape(TARGET.shape)
    expected, ours = models.results(
        lambda z: cross_entropy(z * 0.5, target, reduction="none", class_dim=-1, temperature=of_positions)
    )
    assert (ours - expected).abs().max() <= 64 * UNIT * 40, "a temperature for each position"
    assert not fused_calls(models.ours).computed
    ignoring = both(on_compute="ignore")
    expected, ours = ignoring.results(lambda z: cross_entropy(z.tanh(), target, class_dim=-1, logit_softcap=2.0))
    assert torch.equal(ours, expected) and fused_calls(ignoring.ours).computed, "two caps"


def test_token_scores_of_nkilib_takes_them_with_all_its_options() -> None:
    models = both()
    options: dict[str, Any] = {"logit_softcap": 4.0, "temperature": 0.7}
    for entropy in (True, False):
        expected, ours = models.results(
            lambda z, entropy=entropy: token_scores(z * 0.5, TARGET, entropy=entropy, **options)
        )
        assert type(ours) is type(expected)
        for name, value, exact in zip(expected._fields, ours, expected, strict=True):
            assert value.dtype == exact.dtype and value.shape == exact.shape, name
            torch.testing.assert_close(value, exact, rtol=1e-5, atol=64 * UNIT * 40)
    ignoring = both(on_compute="ignore")
    for use in (
        lambda z: token_scores(z.tanh(), TARGET, logit_softcap=2.0),
        lambda z: token_scores(z.softmax(-1), TARGET),
    ):
        expected, ours = ignoring.results(use)
        assert torch.equal(ours.logprob, expected.logprob)
    assert [place.function for place in fused_calls(ignoring.ours).computed] == ["token_scores"] * 2
    with pytest.raises(ValueError, match="num_classes"):
        token_scores(ignoring.ours(inputs()), TARGET, num_classes=VOCABULARY)


@pytest.mark.parametrize("options", [{}, {"beta": 0.5, "temperature": 2.0, "reduction": "none"}], ids=str)
def test_distillation_loss_of_nkilib_takes_a_teacher_that_is_lazy_too(options: dict[str, Any]) -> None:
    models, teacher = both(on_compute="ignore"), both(bias=True, evaluation=True)
    torch.manual_seed(1)
    torch.nn.init.normal_(teacher.stock.head.weight)
    teacher.ours.load_state_dict(teacher.stock.state_dict())
    labels = TARGET.masked_fill(TARGET == 3, -100)
    gradients, results = [], []
    for student, of_teacher in ((models.stock, teacher.stock), (models.ours, teacher.ours)):
        with torch.no_grad():
            logits = of_teacher(inputs())
        result = distillation_loss(student(inputs()) * 0.5, logits, labels=labels, **options)
        result.square().sum().backward()
        results.append(result)
        gradients.append(student.trunk.weight.grad)
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=64 * UNIT * 40)
    assert (gradients[1] - gradients[0]).norm() <= 1e-5 * gradients[0].norm()
    assert fused_calls(models.ours).fused == {"distillation_loss": 1} and not fused_calls(models.ours).computed
    dense = teacher.stock(inputs()).detach()
    expected, ours = models.results(lambda z: distillation_loss(z, dense))
    assert torch.equal(ours, expected) and fused_calls(models.ours).computed


def test_other_functions_of_nkilib_stay_lazy_or_say_what_to_do() -> None:
    models = both()
    for function in (softmax, log_softmax):
        expected, ours = models.results(lambda z, function=function: function(z, -1).gather(-1, SEVERAL))
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=64 * UNIT * 40)
    logits = models.ours(inputs())
    with pytest.raises(
        TypeError,
        match=r"nll_loss: argument 'input' must be Tensor, not LazyLogits; pass input.compute\(\), which is a tensor, "
        r"or call torch.nn.functional.nll_loss",
    ):
        nll_loss(logits.log_softmax(-1).flatten(0, 1), TARGET.flatten())
    with pytest.raises(TypeError, match=r"not LazyLogits; pass logits_shard.compute\(\), which is a tensor$"):
        vocab_parallel_cross_entropy(logits, TARGET)


def test_every_consumer_is_a_function_of_torch_or_nkilib() -> None:
    for name in CONSUMERS:
        places = (Tensor, torch, F, torch._C._nn, functional, nkilib.torch)
        assert any(hasattr(place, name) for place in places), name
