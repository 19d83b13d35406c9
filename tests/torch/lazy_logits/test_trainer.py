# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The trainer of ``transformers`` with a fused model, three steps beside the stock model: losses, gradients of every
step, parameters, and no logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import FusedCalls, fuse_linear_loss, fused_calls
from tests.torch.inputs import make_targets

if find_spec("transformers") is None or find_spec("accelerate") is None:
    pytest.skip("needs transformers and accelerate", allow_module_level=True)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

VOCABULARY, LENGTH, ROWS, STEPS = 97, 9, 6, 3
# In float32, of gradients and parameters as a share of their norm.
BUDGET = 1e-5


def tiny() -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": LENGTH}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.2))


class Examples(torch.utils.data.Dataset):
    """Rows of which each has another number of targets, so that a mean of means is no mean of all."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        ids = make_targets(LENGTH, classes=VOCABULARY, seed=row)
        labels = ids.clone()
        labels[3 + row :] = -100
        return {"input_ids": ids, "labels": labels}


@dataclass
class Run:
    """The results of a trainer.

    Attributes:
        losses: the loss that it logged for each step.
        gradients: the gradients of each step, by parameter.
        parameters: the parameters at the end.
        metrics: the results of the evaluation.
        calls: the record of the fused model; None for the stock model.
    """

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    calls: FusedCalls | None = None


def _trainer(
    model: PreTrainedModel, directory: Path, run: Run, arguments: Mapping[str, Any], **further: Any
) -> Trainer:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            run.gradients.append({name: item.grad.clone() for name, item in model.named_parameters()})

    options: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "optim": "sgd",
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    }
    further = {"train_dataset": Examples(), "eval_dataset": Examples(), "callbacks": [Watch()], **further}
    return Trainer(model, TrainingArguments(output_dir=str(directory), **{**options, **arguments}), **further)


def run(model: PreTrainedModel, directory: Path, arguments: Mapping[str, Any], **further: Any) -> Run:
    """Train, and evaluate if there is what to compute then."""
    result = Run()
    trainer = _trainer(model, directory, result, arguments, **further)
    trainer.train()
    result.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    result.parameters = {name: item.detach().clone() for name, item in model.named_parameters()}
    if "compute_metrics" in further:
        result.metrics = {name: value for name, value in trainer.evaluate().items() if not name.endswith(_SPEEDS)}
    return result


_SPEEDS = ("runtime", "per_second")


def both_runs(directory: Path, arguments: Mapping[str, Any], fuse: Mapping[str, Any], **further: Any) -> list[Run]:
    """The stock model's run, and that of a fused copy."""
    stock = tiny()
    ours = copy.deepcopy(stock)
    fuse_linear_loss(ours, **fuse)
    runs = [run(model, directory, arguments, **further) for model in (stock, ours)]
    runs[1].calls = fused_calls(ours)
    return runs


def largest_share(actual: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """The largest difference, as a share of the norm."""
    assert actual.keys() == exact.keys()
    return max(float((actual[name] - exact[name]).norm() / exact[name].norm()) for name in exact)


def assert_alike(ours: Run, stock: Run, budget: float = BUDGET) -> None:
    """Losses, gradients of all steps and parameters are equal, but for rounding."""
    assert len(stock.losses) == len(stock.gradients) == len(ours.gradients) == STEPS
    assert ours.losses == pytest.approx(stock.losses, rel=budget)
    for gradients, exact in zip(ours.gradients, stock.gradients, strict=True):
        assert largest_share(gradients, exact) <= budget
    assert largest_share(ours.parameters, stock.parameters) <= budget


SMOOTHED = {"gather": 2 * STEPS, "sum": 2 * STEPS}
# Arguments of the trainer, and what runs in place of the logits.
CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "accumulation": ({}, {"cross_entropy": 2 * STEPS}),
    "one batch a step": (
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
        {"cross_entropy": STEPS},
    ),
    "label smoothing": ({"label_smoothing_factor": 0.1}, SMOOTHED),
    "checkpointed activations": ({"gradient_checkpointing": True}, {"cross_entropy": 2 * STEPS}),
    "checkpointed activations, reentrant": (
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"cross_entropy": 2 * STEPS},
    ),
    "checkpointed activations, label smoothing": (
        {"gradient_checkpointing": True, "label_smoothing_factor": 0.1},
        SMOOTHED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_three_steps_are_those_of_the_stock_model(name: str, tmp_path: Path) -> None:
    arguments, fused = CASES[name]
    stock, ours = both_runs(tmp_path, arguments, {"on_compute": "raise"})
    assert_alike(ours, stock)
    assert ours.calls is not None and (ours.calls.fused, ours.calls.computed) == (fused, {})
    assert stock.losses[0] != pytest.approx(stock.losses[1], rel=1e-3), "other rows in every step"


def test_without_the_number_of_targets_losses_of_micro_batches_are_averaged(tmp_path: Path) -> None:
    """Models train so whose ``forward`` does not take ``num_items_in_batch``."""
    results = []
    for fuse in (False, True):
        model, result = tiny(), Run()
        if fuse:
            fuse_linear_loss(model, on_compute="raise")
        trainer = _trainer(model, tmp_path, result, {})
        trainer.model_accepts_loss_kwargs = False
        trainer.train()
        result.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        result.parameters = {name: item.detach() for name, item in model.named_parameters()}
        results.append(result)
    assert_alike(results[1], results[0])
    whole = run(tiny(), tmp_path, {})
    assert abs(whole.losses[0] - results[0].losses[0]) > 1e-3, "the two kinds of means differ"


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_autocast_is_no_further_from_float64_than_the_stock_model(smoothing: float, tmp_path: Path) -> None:
    arguments = {"label_smoothing_factor": smoothing}
    exact = run(tiny().double(), tmp_path, arguments)
    stock, ours = both_runs(tmp_path, {**arguments, "bf16": True}, {"on_compute": "raise"})
    assert ours.calls is not None and ours.calls.fused and not ours.calls.computed
    for theirs, mine, reference in zip(stock.gradients, ours.gradients, exact.gradients, strict=True):
        assert 0 < largest_share(mine, reference) <= 2 * largest_share(theirs, reference)
    assert max(abs(a - b) for a, b in zip(ours.losses, exact.losses, strict=True)) <= 2.0**-7 * exact.losses[0]


def test_smoothing_of_fuse_linear_loss_is_that_of_the_trainer(tmp_path: Path) -> None:
    expected = run(tiny(), tmp_path, {"label_smoothing_factor": 0.1})
    model = tiny()
    fuse_linear_loss(model, label_smoothing=0.1, on_compute="raise")
    assert_alike(run(model, tmp_path, {}), expected)


def _tokens(logits: Any, labels: Tensor) -> Tensor:
    """What the trainer keeps of a batch's logits."""
    tokens: Tensor = logits.argmax(-1)
    return tokens


def _accuracy(prediction: Any) -> dict[str, float]:
    tokens, labels = prediction.predictions[:, :-1], prediction.label_ids[:, 1:]
    return {"accuracy": float((tokens == labels)[labels != -100].mean())}


def _shape(prediction: Any) -> dict[str, float]:
    return {f"size_{dim}": float(size) for dim, size in enumerate(prediction.predictions.shape)}


Metrics = Callable[[Any], dict[str, float]]


@pytest.mark.parametrize(
    ("metrics", "arguments"),
    [
        (_accuracy, {}),
        (_accuracy, {"bf16": True, "label_smoothing_factor": 0.1, "eval_accumulation_steps": 1}),
        (_shape, {"bf16": True, "per_device_eval_batch_size": 2}),
    ],
)
def test_evaluation_has_logits_and_metrics_of_the_stock_model(
    metrics: Metrics, arguments: dict[str, Any], tmp_path: Path
) -> None:
    further: dict[str, Any] = {"compute_metrics": metrics}
    if metrics is _accuracy:
        further["preprocess_logits_for_metrics"] = _tokens
    stock, ours = both_runs(tmp_path, arguments, {"on_compute": "raise"}, **further)
    assert ours.metrics.keys() == stock.metrics.keys() and len(stock.metrics) > 1
    loss = stock.metrics.pop("eval_loss")
    assert ours.metrics.pop("eval_loss") == pytest.approx(loss, rel=BUDGET if "bf16" not in arguments else 2.0**-7)
    if "bf16" not in arguments or metrics is _shape:
        assert ours.metrics == stock.metrics
    assert ours.calls is not None and "argmax" not in ours.calls.fused and not ours.calls.computed


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_evaluation_of_the_loss_alone_may_do_without_logits(smoothing: float, tmp_path: Path) -> None:
    losses = []
    model = tiny()
    for fuse in (False, True):
        if fuse:
            fuse_linear_loss(model, evaluation=True, on_compute="raise")
        trainer = _trainer(model, tmp_path, Run(), {"label_smoothing_factor": smoothing})
        losses.append(trainer.evaluate()["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=BUDGET)
    assert set(fused_calls(model).fused) == ({"gather", "sum"} if smoothing else {"cross_entropy"})


def test_metrics_of_an_evaluation_without_logits_take_tokens_from_a_step_of_ones_own(tmp_path: Path) -> None:
    from transformers import Trainer

    class OfTokens(Trainer):
        def prediction_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
            with torch.no_grad():
                outputs = model(**self._prepare_inputs(inputs))
            return outputs.loss, outputs.logits.argmax(-1), inputs["labels"]

    model = tiny()
    stock = _trainer(
        model, tmp_path, Run(), {}, compute_metrics=_accuracy, preprocess_logits_for_metrics=_tokens
    ).evaluate()
    fuse_linear_loss(model, evaluation=True, on_compute="raise")
    trainer = _trainer(model, tmp_path, Run(), {}, compute_metrics=_accuracy)
    with pytest.raises(TypeError, match="LazyLogits"):  # of accelerate, which knows tensors alone
        trainer.evaluate()
    ours = OfTokens(model, trainer.args, eval_dataset=Examples(), compute_metrics=_accuracy).evaluate()
    assert ours["eval_accuracy"] == stock["eval_accuracy"]
    assert ours["eval_loss"] == pytest.approx(stock["eval_loss"], rel=BUDGET)
    assert fused_calls(model).fused["argmax"] > 0


def test_a_checkpoint_of_a_fused_model_resumes_and_is_one_of_the_stock_model(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    arguments = {"optim": "adamw_torch", "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    stock, ours = both_runs(tmp_path, arguments, {"on_compute": "raise"})
    assert_alike(ours, stock, 1e-4)  # Adam divides by what is nearly 0
    resumed, result = tiny(), Run()
    fuse_linear_loss(resumed, on_compute="raise")
    with torch.no_grad():
        resumed.lm_head.weight.zero_()  # comes from the checkpoint
    saved = tmp_path / "checkpoint-2"
    _trainer(resumed, tmp_path, result, arguments).train(resume_from_checkpoint=str(saved))
    assert len(result.gradients) == 1
    assert all(torch.equal(item, ours.parameters[name]) for name, item in resumed.named_parameters())
    loaded = LlamaForCausalLM.from_pretrained(saved)
    assert loaded.state_dict().keys() == tiny().state_dict().keys()
    resumed.save_pretrained(tmp_path / "end")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "end")
    assert all(torch.equal(item, ours.parameters[name]) for name, item in again.named_parameters())
