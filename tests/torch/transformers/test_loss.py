# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``causal_lm_loss`` in Hugging Face models with random parameters, beside the stock loss of the same models."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nkilib import simulator
from nkilib.experimental.loss.cross_entropy.launch import RecipeOptions
from nkilib.torch import cross_entropy
from nkilib.torch.transformers import causal_lm_loss
from tests.torch.inputs import gradient_of, make_logits, make_targets
from tests.torch.transformers.models import (
    BATCH,
    GRADIENT_BUDGET,
    LOSS_BUDGET,
    Make,
    Windows,
    assert_rounded_alike,
    difference,
    gradient_budget,
    llama,
    logit_gradient_and_loss,
    padded_batch,
    pair,
    qwen2,
    training_arguments,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STEPS = 10
MODELS = pytest.mark.parametrize("make", [llama, qwen2])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def _pair(make: Make, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The stock model, and one with the same parameters and our loss."""
    stock, ours = pair(make, dtype)
    ours.loss_function = causal_lm_loss
    return stock, ours


@MODELS
@TYPES
@pytest.mark.parametrize("items", [None, 40, torch.tensor(40)], ids=["mean", "int", "tensor"])
def test_loss_and_gradients_are_the_stock_models(make: Make, dtype: torch.dtype, items: Any) -> None:
    stock, ours = _pair(make, dtype)
    batch = padded_batch()
    batch["num_items_in_batch"] = items
    of_stock, expected = logit_gradient_and_loss(stock, batch)
    with simulator.recording() as record:
        of_ours, loss = logit_gradient_and_loss(ours, batch)
    assert sum(record.instruction_counts.values()) > 0, "the kernels ran"
    assert loss.dtype == expected.dtype == torch.float32 and loss.shape == expected.shape == ()
    assert abs(loss.item() - expected.item()) <= LOSS_BUDGET
    if dtype == torch.bfloat16:
        assert_rounded_alike(of_ours, of_stock)
    assert difference(ours, stock) <= gradient_budget(stock, batch)


@TYPES
def test_the_budgets_see_a_missing_shift_and_padding_that_counts(dtype: torch.dtype) -> None:
    stock, ours = _pair(llama, dtype)
    batch = padded_batch()
    expected = stock(**batch).loss
    expected.backward()
    budget = gradient_budget(stock, batch)
    for labels in (batch["labels"].roll(1, dims=1), batch["labels"].clamp(min=0)):
        ours.zero_grad()
        loss = ours(**{**batch, "labels": labels}).loss
        loss.backward()
        assert abs(loss.item() - expected.item()) > 100 * LOSS_BUDGET
        assert difference(ours, stock) > 10 * budget


@pytest.mark.parametrize("make", [llama, pytest.param(qwen2, marks=pytest.mark.sweep)], ids=["llama", "qwen"])
@TYPES
def test_ten_steps_follow_the_stock_trajectory(make: Make, dtype: torch.dtype) -> None:
    """Wherever the stock model comes to, ours has its loss and gradients, and a run of its own learns too.

    Two free runs are not compared: AdamW divides by the size of a gradient, so that an ulp of a small one moves a
    parameter by a whole step, and how far runs come apart depends on the last bits of a machine.
    """
    (stock, ours), (_, free) = _pair(make, dtype), _pair(make, dtype)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (stock, free)]
    histories = []
    for step in range(STEPS):
        ours.load_state_dict(stock.state_dict())
        batch, losses, of_logits = padded_batch(seed=step % 2), [], []
        for model in (stock, ours, free):
            model.zero_grad()
            gradient, loss = logit_gradient_and_loss(model, batch)
            losses.append(loss.item())
            of_logits.append(gradient)
        assert abs(losses[1] - losses[0]) <= LOSS_BUDGET, f"step {step}"
        if dtype == torch.bfloat16:
            assert_rounded_alike(of_logits[1], of_logits[0])
        assert difference(ours, stock) <= gradient_budget(stock, batch), f"step {step}"
        for optimizer in optimizers:
            optimizer.step()
        histories.append(losses)
    for first, last in zip(histories[0], histories[-1], strict=True):
        assert last < first - 1.0, "the model learns"


def test_micro_batches_with_num_items_are_one_batch() -> None:
    stock, ours = _pair(llama)
    batch = padded_batch()
    stock(**batch).loss.backward()
    items = (batch["labels"][:, 1:] != -100).sum()
    for row in range(BATCH):
        ours(**{name: value[row : row + 1] for name, value in batch.items()}, num_items_in_batch=items).loss.backward()
    assert difference(ours, stock) <= GRADIENT_BUDGET[torch.float32]


@pytest.mark.parametrize("inplace", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_the_trainer_follows_the_stock_loss_under_gradient_accumulation(inplace: bool, tmp_path: Path) -> None:
    """It counts the targets of all micro-batches of a step, and hands the number on."""
    from transformers import Trainer

    stock, ours = _pair(llama)
    ours.loss_function = functools.partial(causal_lm_loss, inplace=inplace)
    histories = []
    for model in (stock, ours):
        trainer = Trainer(model, training_arguments(tmp_path), train_dataset=Windows())
        with simulator.recording() as record:
            trainer.train()
        assert bool(record.instruction_counts) == (model is ours)
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(histories[0]) == 3 and histories[0][-1] < histories[0][0]
    # What the trainer logs is rounded to four digits after the point.
    assert histories[1] == pytest.approx(histories[0], abs=1.1e-4)
    for theirs, parameter in zip(stock.parameters(), ours.parameters(), strict=True):
        assert (parameter - theirs).norm() <= 1e-4 * theirs.norm()


def test_in_place_the_logits_become_their_gradient() -> None:
    stock, ours = _pair(llama)
    ours.loss_function = functools.partial(causal_lm_loss, inplace=True)
    stock(**padded_batch()).loss.backward()
    output = ours(**padded_batch())
    before = output.logits.detach().clone()
    output.loss.backward()
    assert not torch.equal(output.logits, before)
    assert difference(ours, stock) <= GRADIENT_BUDGET[torch.float32]


@pytest.mark.parametrize("flat", [False, True], ids=["as the logits", "flat"])
def test_shift_labels_replace_labels(flat: bool) -> None:
    stock, ours = _pair(llama)
    batch = padded_batch()
    shifted = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    batch["labels"] = torch.zeros_like(batch["labels"])  # the models look whether there are labels, and hand them on
    inputs = shifted.flatten() if flat else shifted
    losses = [model(**batch, shift_labels=inputs).loss.item() for model in (stock, ours)]
    assert abs(losses[0] - losses[1]) <= LOSS_BUDGET
    assert abs(losses[1] - stock(**padded_batch()).loss.item()) <= LOSS_BUDGET


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_logits_of_other_types_are_cast_as_there(dtype: torch.dtype) -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits = make_logits(2, 5, 11, dtype=dtype).requires_grad_()
    labels = make_targets(2, 5, ignored=3)
    losses = [loss(logits, labels, 11, ignore_index=3) for loss in (ForCausalLMLoss, causal_lm_loss)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=LOSS_BUDGET)
    gradients = [gradient_of(loss, logits) for loss in losses]
    assert gradients[1].dtype == dtype
    torch.testing.assert_close(gradients[1], gradients[0])


def test_without_a_target_the_mean_is_that_of_pytorch() -> None:
    labels = torch.full((1, 3), -100)
    assert causal_lm_loss(make_logits(1, 3, 11), labels, 11).isnan()
    assert causal_lm_loss(make_logits(1, 3, 11), labels, 11, num_items_in_batch=4) == 0


def test_arguments_are_those_that_transformers_names() -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    theirs = list(inspect.signature(ForCausalLMLoss).parameters.values())
    ours = inspect.signature(causal_lm_loss).parameters
    further = {"label_smoothing", "inplace", *RecipeOptions.__annotations__}
    assert further >= {"logit_softcap", "lse_square_scale"}
    assert [name for name in ours if name not in further] == [parameter.name for parameter in theirs]
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in further)
    # Every argument of cross_entropy is one here, or refused; what a model hands on beside them is ignored, as there.
    not_ours = set(inspect.signature(cross_entropy).parameters) - set(ours) - {"input", "target"}
    assert not_ours == {"weight", "reduction", "normalizer", "return_outputs", "class_dim"}
    logits, labels = make_logits(2, 5, 11), make_targets(2, 5)
    assert causal_lm_loss(logits, labels, 11, output_attentions=True) == causal_lm_loss(logits, labels, 11)
    for parameter in theirs:
        assert ours[parameter.name].kind == parameter.kind and ours[parameter.name].default == parameter.default


@pytest.mark.parametrize("option", [{"label_smoothing": 0.1}, {"logit_softcap": 2.0}, {"lse_square_scale": 0.1}])
def test_options_are_those_of_cross_entropy(option: dict[str, float]) -> None:
    logits, labels = make_logits(2, 5, 11), make_targets(2, 5, ignored=-100)
    target = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    loss = functools.partial(causal_lm_loss, **option)(logits, labels, 11)
    assert torch.equal(loss, cross_entropy(logits, target, class_dim=-1, **option))  # type: ignore[call-overload]
    assert loss != causal_lm_loss(logits, labels, 11)


def test_labels_and_counts_go_to_the_device_of_the_logits() -> None:
    logits = torch.empty(2, 5, 11, device="meta", requires_grad=True)
    for item in ({"labels": make_targets(2, 5)}, {"labels": None, "shift_labels": make_targets(2, 5)}):
        for items in (None, 7, torch.tensor(7)):
            loss = causal_lm_loss(logits, vocab_size=11, num_items_in_batch=items, **item)
            assert loss.device.type == gradient_of(loss, logits).device.type == "meta"


def test_nothing_looks_at_values() -> None:
    with FakeTensorMode():
        logits = torch.empty(2, 5, 11, requires_grad=True)
        labels, items = torch.zeros(2, 5, dtype=torch.int64), torch.tensor(7)
        for count in (None, 7, items):
            loss = causal_lm_loss(logits, labels, 11, num_items_in_batch=count)
            assert loss.shape == () and gradient_of(loss, logits).shape == logits.shape


def test_a_full_graph_gives_equal_results() -> None:
    logits, labels = make_logits(2, 5, 11).requires_grad_(), make_targets(2, 5)
    compiled = torch.compile(causal_lm_loss, fullgraph=True, backend="aot_eager")
    for items in (None, 7, torch.tensor(7)):
        eager = causal_lm_loss(logits, labels, 11, num_items_in_batch=items)
        loss = compiled(logits, labels, 11, num_items_in_batch=items)
        assert torch.equal(loss, eager)
        assert torch.equal(gradient_of(loss, logits), gradient_of(eager, logits))


def test_num_items_of_shape_one() -> None:
    logits, labels = make_logits(2, 5, 11), make_targets(2, 5)
    losses = [causal_lm_loss(logits, labels, 11, num_items_in_batch=items) for items in (7, torch.tensor([7]))]
    assert losses[0] == losses[1] and losses[1].shape == ()


def test_refusals() -> None:
    logits, labels = make_logits(2, 5, 11), make_targets(2, 5)
    with pytest.raises(ValueError, match=r"vocab_size must be the last dimension of logits, got 12 .*\(2, 5, 11\)"):
        causal_lm_loss(logits, labels, 12)
    with pytest.raises(ValueError, match=r"num_items_in_batch must be a number or a tensor of one element.*\(2,\)"):
        causal_lm_loss(logits, labels, 11, num_items_in_batch=torch.tensor([3, 4]))
    with pytest.raises(ValueError, match="labels or shift_labels must be given"):
        causal_lm_loss(logits, None, 11)
    message = r"a label for each of the 10 positions of logits, \(2, 5\), got 8 of shape \(2, 4\); where logits_to_keep"
    with pytest.raises(ValueError, match=message):
        causal_lm_loss(logits, labels[:, :4], 11)
    for name in ("weight", "reduction", "normalizer", "return_outputs", "class_dim"):
        with pytest.raises(TypeError, match=f"causal_lm_loss: {name} cannot be passed on to cross_entropy"):
            causal_lm_loss(logits, labels, 11, **{name: None})
    with pytest.raises(IndexError, match="Target 11 is out of bounds"):
        causal_lm_loss(logits, labels.fill_(11), 11)
