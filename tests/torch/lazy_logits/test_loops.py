# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loops as users write them with a fused model, three steps beside the stock model: losses, gradients, parameters and
metrics, and no logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import LazyLogits, fuse_linear_loss, fused_calls
from tests.torch.inputs import make_logits, make_targets
from tests.torch.lazy_logits.models import BATCH, FEATURES, LENGTH, VOCABULARY, Model, Use, both, inputs, model

STEPS = 3
# Of losses, and of gradients and parameters as a share of their norm, in float32.
BUDGET = 1e-5
LABELS = make_targets(BATCH, LENGTH, classes=VOCABULARY, ignored=-100)
IDS = make_targets(BATCH, LENGTH, classes=VOCABULARY, seed=4)
MASK = (LABELS != -100).float()
# A loss of a model and its frozen copy of before the training, in a step of a number, and what it logs.
LossOf = Callable[[Any, Any, int], tuple[Tensor, float]]


@dataclass
class Run:
    """Losses and what was logged beside them, the gradients of the last step, and the parameters after it."""

    losses: list[float] = field(default_factory=list)
    logged: list[float] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)


def run(made: nn.Module, loss_of: LossOf) -> Run:
    """Take the steps."""
    reference = copy.deepcopy(made).requires_grad_(False).eval()
    optimizer, result = torch.optim.SGD(made.parameters(), lr=1e-3), Run()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, logged = loss_of(made, reference, step)
        loss.backward()
        optimizer.step()
        result.losses.append(loss.item())
        result.logged.append(logged)
    result.gradients = [item.grad for item in made.parameters() if item.grad is not None]
    result.parameters = [item.detach() for item in made.parameters()]
    return result


def share(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, as a share of the norm."""
    pairs = zip(actual, expected, strict=True)
    return max(float((mine.double() - theirs).norm() / theirs.norm()) for mine, theirs in pairs)


def assert_alike(ours: Run, stock: Run) -> None:
    assert ours.losses == pytest.approx(stock.losses, rel=BUDGET, abs=BUDGET)
    assert ours.logged == pytest.approx(stock.logged, rel=BUDGET, abs=BUDGET)
    assert stock.gradients and share(ours.gradients, stock.gradients) <= BUDGET
    assert share(ours.parameters, stock.parameters) <= BUDGET


def _torchtitan(made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
    pred = made(inputs())
    return F.cross_entropy(pred.flatten(0, 1).float(), LABELS.flatten(0, 1)), 0.0


def _torchtitan_of_tokens(made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
    """A sum, divided by the tokens of all micro-batches."""
    losses = []
    for rows in (slice(0, 1), slice(1, 2)):
        pred = made(inputs()[rows])
        total = F.cross_entropy(pred.flatten(0, 1).float(), LABELS[rows].flatten(0, 1), reduction="sum")
        losses.append(total / MASK.sum())
    return torch.stack(losses).sum(), 0.0


def _logprobs(made: Any, temperature: float = 1.0) -> Tensor:
    logits = made(inputs())[:, :-1] / temperature
    logprobs: Tensor = logits.log_softmax(-1).gather(-1, IDS[:, 1:, None]).squeeze(-1)
    return logprobs


def _dpo(made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
    """The first row is chosen, the second is rejected."""
    with torch.no_grad():
        before = _logprobs(reference).sum(-1)
    ratios = _logprobs(made).sum(-1) - before
    margin = 0.1 * (ratios[0] - ratios[1])
    return -F.logsigmoid(margin), margin.item()


def _grpo(made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
    """Clipped ratios, a divergence from the reference and an entropy, which is logged."""
    with torch.no_grad():
        before = _logprobs(reference, 0.7)
    advantage = make_logits(BATCH, 1, seed=6)
    logits = made(inputs())[:, :-1] / 0.7
    logprobs = logits.log_softmax(-1).gather(-1, IDS[:, 1:, None]).squeeze(-1)
    p = logits.softmax(-1)
    entropy = logits.logsumexp(-1) - (p * logits).sum(-1)
    ratio = torch.exp(logprobs - before)
    policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    divergence = torch.exp(before - logprobs) - (before - logprobs) - 1
    mask = MASK[:, 1:]
    loss = ((policy + 0.04 * divergence - 0.01 * entropy) * mask).sum() / mask.sum()
    return loss, (entropy.detach() * mask).sum().item()


def _smoothed(made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
    """Label smoothing of timm, which takes a mean of log-probabilities."""
    logprobs = F.log_softmax(made(inputs()).flatten(0, 1), dim=-1)
    nll = -logprobs.gather(dim=-1, index=IDS.flatten().unsqueeze(1)).squeeze(1)
    return (0.9 * nll - 0.1 * logprobs.mean(dim=-1)).mean(), 0.0


def _with_confidence(made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
    """Accuracy and confidence beside the loss."""
    logits = made(inputs())
    with torch.no_grad():
        confidence, tokens = logits.softmax(-1).max(-1)
    logged = confidence.sum() + (tokens == IDS).sum()
    return F.cross_entropy(logits.transpose(1, 2), IDS), logged.item()


class Task(nn.Module):
    """A module like those of Lightning, which gives logits to a criterion of its own, and logs."""

    def __init__(self, made: Model) -> None:
        super().__init__()
        self.model, self.criterion = made, nn.CrossEntropyLoss(label_smoothing=0.1)
        self.logged: dict[str, float] = {}

    def forward(self, batch: Tensor) -> Any:
        return self.model(batch)

    def log(self, name: str, value: Tensor) -> None:
        self.logged[name] = value.item()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> dict[str, Any]:
        logits = self(batch[0])
        loss = self.criterion(logits.view(-1, logits.size(-1)), batch[1].view(-1))
        self.log("accuracy", (logits.argmax(dim=-1) == batch[1]).float().mean())
        return {"loss": loss, "logits": logits.detach()}

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        logits = self(batch[0])
        assert isinstance(logits, Tensor)
        loss: Tensor = self.criterion(logits.view(-1, logits.size(-1)), batch[1].view(-1))
        return loss


def _lightning(made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
    task = Task(made)
    loss = task.training_step((inputs(), IDS), step)["loss"]
    task.eval()
    with torch.no_grad():
        validation = task.validation_step((inputs(), IDS), step)
    task.train()
    return loss, task.logged["accuracy"] + validation.item()


# Losses, and what runs in place of the logits.
LOOPS: dict[str, tuple[LossOf, dict[str, int]]] = {
    "TorchTitan": (_torchtitan, {"cross_entropy": STEPS}),
    "TorchTitan, tokens of micro-batches": (_torchtitan_of_tokens, {"cross_entropy": 2 * STEPS}),
    "DPO": (_dpo, {"gather": STEPS}),
    "GRPO": (_grpo, {"gather": STEPS, "logsumexp": STEPS, "sum": STEPS}),
    "label smoothing of timm": (_smoothed, {"gather": STEPS, "mean": STEPS}),
    "accuracy and confidence": (_with_confidence, {"max": STEPS, "cross_entropy": STEPS}),
    "a Lightning module": (_lightning, {"cross_entropy": STEPS, "argmax": STEPS}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_three_steps_of_a_loop_are_those_of_the_stock_model(name: str) -> None:
    loss_of, fused = LOOPS[name]
    models = both(bias=True)
    stock, ours = run(models.stock, loss_of), run(models.ours, loss_of)
    assert_alike(ours, stock)
    calls = fused_calls(models.ours)
    assert (calls.fused, calls.computed) == (fused, {})


@pytest.fixture
def accelerate_afresh() -> Iterator[None]:
    """An Accelerator's options are those of the first one in a process, unless it is forgotten."""
    if find_spec("accelerate") is None:
        pytest.skip("needs accelerate")
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def _with_accelerate(made: Model, precision: str, fuse: Callable[[nn.Module], None], when: str, path: Path) -> Run:
    """Six micro-batches in three steps, accuracy of all, and the state saved and loaded."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    if when == "before":
        fuse(made)
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    dtype, result = made.head.weight.dtype, Run()
    rows = [(inputs(dtype)[row % 2] * (1 + row / 8), IDS[row % 2]) for row in range(12)]
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01)
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=2)  # type: ignore[arg-type]
    prepared, optimizer, loader = accelerator.prepare(made, optimizer, loader)
    if when == "after":
        fuse(prepared)
    for batch, labels in loader:
        with accelerator.accumulate(prepared):
            logits = prepared(batch)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            tokens, labels = accelerator.gather_for_metrics((logits.argmax(-1), labels))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                result.gradients = [item.grad.clone() for item in made.parameters()]
            optimizer.step()
            optimizer.zero_grad()
        result.losses.append(loss.item())
        result.logged.append((tokens == labels).sum().item())
    result.parameters = [item.detach().clone() for item in made.parameters()]
    accelerator.save_state(str(path))
    with torch.no_grad():
        made.head.weight.zero_()
    accelerator.load_state(str(path))
    assert torch.equal(made.head.weight, result.parameters[-1])
    return result


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_trains_as_with_the_stock_model(
    precision: str, when: str, accelerate_afresh: None, tmp_path: Path
) -> None:
    def nothing(made: nn.Module) -> None:
        pass

    fuse = partial(fuse_linear_loss, head="head", on_compute="raise")
    train = partial(_with_accelerate, precision=precision, when=when, path=tmp_path)
    ours_model = model()
    stock, ours = train(model(), fuse=nothing), train(ours_model, fuse=fuse)
    calls = fused_calls(ours_model)
    assert calls.fused == {"cross_entropy": 2 * STEPS, "argmax": 2 * STEPS} and not calls.computed
    if precision == "no":
        assert_alike(ours, stock)
        return
    exact = _with_accelerate(model(dtype=torch.float64), "no", nothing, when, tmp_path)
    assert 0 < share(ours.gradients, exact.gradients) <= 2 * share(stock.gradients, exact.gradients)
    assert ours.losses == pytest.approx(exact.losses, rel=2.0**-7)


def _titans(pred: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))


def test_a_compiled_loss_takes_logits_of_a_model_that_is_not(compile_afresh: None) -> None:
    """TorchTitan compiles its loss so; all steps have one graph."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(_titans, backend=counter, fullgraph=True)
    models = both()
    runs = [
        run(made, lambda made, reference, step, loss=loss: (loss(made(inputs()), LABELS), 0.0))
        for made, loss in ((models.stock, _titans), (models.ours, compiled))
    ]
    assert_alike(runs[1], runs[0])
    assert counter.frame_count == 1 and not fused_calls(models.ours).computed


IN_GRAPHS: dict[str, Use] = {
    "of detached logits": lambda z: (
        z.logsumexp(-1).sum() + (z.detach().max(-1).values - z.detach().logsumexp(-1)).sum()
    ),
    "of computed logits": lambda z: (z / 2)[:, 1:].sort(-1).values[..., -1].sum() + z.float().std(),
}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", IN_GRAPHS)
def test_a_whole_graph_has_detached_and_computed_logits(
    name: str, precision: torch.dtype, compile_afresh: None
) -> None:
    models, batch = both(on_compute="ignore"), inputs()

    def loss_of(made: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            logits = made(batch)
        loss: Tensor = IN_GRAPHS[name](logits.float())
        return loss

    compiled = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
    results = [loss_of(models.stock), compiled(models.ours)]
    for result in results:
        result.backward()
    assert results[1].item() == pytest.approx(results[0].item(), rel=BUDGET if precision is torch.float32 else 2.0**-7)
    gradients = [[item.grad for item in made.parameters()] for made in (models.ours, models.stock)]
    assert share(*gradients) <= (BUDGET if precision is torch.float32 else 2.0**-5)


def _has_compiler() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return bool(get_cpp_compiler())
    except Exception:  # whatever inductor raises where there is none
        return False


def test_inductor_compiles_a_step(compile_afresh: None) -> None:
    if not _has_compiler():
        pytest.skip("inductor needs a C++ compiler")

    batch = inputs()

    def loss_of(made: Any, reference: Any, step: int) -> tuple[Tensor, Tensor]:
        logits = made(batch)
        scores = (logits[:, :-1] / 0.7).log_softmax(-1).gather(-1, IDS[:, 1:, None])
        confidence, _ = logits.detach().max(-1)
        return F.cross_entropy(logits.flatten(0, 1), LABELS.flatten()) - scores.mean(), confidence.sum()

    models = both()
    compiled = torch.compile(loss_of, fullgraph=True)

    def called(use: Any, made: Any, reference: Any, step: int) -> tuple[Tensor, float]:
        loss, logged = use(made, reference, 0)
        return loss, logged.item()

    uses = ((models.stock, loss_of), (models.ours, compiled))
    stock, ours = (run(made, partial(called, use)) for made, use in uses)
    assert_alike(ours, stock)


def test_an_exported_loss_computes_logits() -> None:
    class Loss(nn.Module):
        def __init__(self, made: nn.Module) -> None:
            super().__init__()
            self.model = made

        def forward(self, batch: Tensor) -> Tensor:
            return _titans(self.model(batch), LABELS)

    for options in ({}, {"evaluation": True}):
        models = both(**options)
        program = torch.export.export(Loss(models.ours), (inputs(),))
        assert torch.allclose(program.module()(inputs()), Loss(models.stock)(inputs()))
        called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        assert "aten.linear.default" in called and not any("nkilib" in name for name in called)


ON_META: dict[str, Use] = {
    "cross_entropy": lambda z: F.cross_entropy(z.flatten(0, 1), LABELS.flatten().to("meta")),
    "log-probabilities": lambda z: z.log_softmax(-1).gather(-1, IDS[..., None].to("meta")).sum(),
    "max": lambda z: z.max(-1).values.sum(),
}


@pytest.mark.parametrize("name", ON_META)
def test_tensors_without_data_have_shapes_of_results_and_gradients(name: str) -> None:
    made = model().to("meta")
    fuse_linear_loss(made, head="head", on_compute="raise")
    logits = made(inputs().to("meta"))
    loss = ON_META[name](logits)
    loss.backward()
    assert isinstance(logits, LazyLogits) and logits.is_meta and loss.is_meta and loss.shape == ()
    assert made.head.weight.grad is not None and made.head.weight.grad.is_meta
    assert made.trunk.weight.grad is not None and made.trunk.weight.grad.shape == (FEATURES, FEATURES)
