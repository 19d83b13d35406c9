# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``fuse_linear_loss`` of models of ``transformers`` with random parameters, beside the stock loss of these models."""

from __future__ import annotations

import copy
import functools
from types import MethodType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib import simulator
from nkilib.torch import LazyLogits, Undo, fuse_linear_loss
from nkilib.torch.transformers import causal_lm_loss
from tests.torch.operator_log import OperatorLog
from tests.torch.telling import UNIT
from tests.torch.transformers.models import (
    BATCH,
    GRADIENT_BUDGET,
    LENGTH,
    LOSS_BUDGET,
    VOCABULARY,
    Make,
    difference,
    gemma2,
    gradients_of,
    largest_share,
    llama,
    mistral,
    padded_batch,
    pair,
    qwen2,
    qwen3,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


MODELS = pytest.mark.parametrize("make", [llama, qwen2, qwen3, mistral, gemma2])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
# What makes logits of random parameters as large as those of a model that has learnt.
SPREAD = 8.0
# Of a parameter's gradient, as a share of its norm, against logits and loss in float64. float32: the gradient of the
# logits, its two products, and what the trunk makes of either, in other orders. bfloat16: that gradient and the two
# products are rounded, 2^-9 of themselves each, and other inputs are other roundings in the trunk, where each of two
# layers has about ten products on the way back; so the stock model is as far from float64.
EXACT_BUDGET = {torch.float32: 16 * UNIT, torch.bfloat16: 2.0**-6}


def _pair(make: Make, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The stock model, and the fused one, with larger logits than random parameters have."""
    stock, _ = pair(make, dtype)
    with torch.no_grad():
        stock.lm_head.weight.mul_(SPREAD)
    ours = copy.deepcopy(stock)
    fuse_linear_loss(ours)
    return stock.train(), ours.train()


def _exact_loss(model: PreTrainedModel, batch: dict[str, Tensor], items: int | None = None) -> Tensor:
    """Compute the loss of the model's own hidden states, in float64 from there on."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    hidden = model.model(**inputs).last_hidden_state
    logits = F.linear(hidden.double(), model.lm_head.weight.double())
    cap = getattr(model.config, "final_logit_softcapping", None)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    target = F.pad(batch["labels"], (0, 1), value=-100)[:, 1:].flatten()
    loss = F.cross_entropy(logits.flatten(0, 1), target, reduction="mean" if items is None else "sum")
    return loss if items is None else loss / items


@MODELS
@TYPES
def test_loss_and_gradients_are_those_of_float64(make: Make, dtype: torch.dtype) -> None:
    stock, ours = _pair(make, dtype)
    batch, items = padded_batch(), 40 if make in (llama, gemma2) else None
    expected = _exact_loss(stock, batch, items)
    with simulator.recording() as record:
        output = ours(**batch, num_items_in_batch=items)
    assert sum(record.instruction_counts.values()) > 0, "the kernels ran"
    assert output.loss.dtype == torch.float32 and output.loss.shape == ()
    assert isinstance(output.logits, LazyLogits)
    assert abs(output.loss.item() - expected.item()) <= LOSS_BUDGET
    expected.backward()
    output.loss.backward()
    assert difference(ours, stock) <= EXACT_BUDGET[dtype]
    exact = gradients_of(stock)
    wrong = [{name: -gradient for name, gradient in exact.items()}, {name: 0 * value for name, value in exact.items()}]
    assert all(largest_share(item, exact) > 10 * EXACT_BUDGET[dtype] for item in wrong)


@MODELS
def test_loss_gradients_and_outputs_are_those_of_the_stock_model(make: Make) -> None:
    stock, ours = _pair(make)
    batch = {**padded_batch(), "output_hidden_states": True, "output_attentions": True}
    for model in (stock, ours):
        model.set_attn_implementation("eager")
    theirs, output = stock(**batch), ours(**batch)
    assert abs(output.loss.item() - theirs.loss.item()) <= LOSS_BUDGET
    assert list(output.keys()) == list(theirs.keys())
    assert len(output.hidden_states) == 3 and len(output.attentions) == 2
    for name in ("hidden_states", "attentions"):
        assert all(torch.equal(*item) for item in zip(output[name], theirs[name], strict=True))
    cached = [[layer.keys for layer in item.past_key_values.layers] for item in (output, theirs)]
    assert all(torch.equal(*item) for item in zip(*cached, strict=True))
    theirs.loss.backward()
    output.loss.backward()
    assert difference(ours, stock) <= GRADIENT_BUDGET[torch.float32]


@TYPES
def test_the_budgets_see_a_missing_shift_padding_that_counts_and_a_missing_cap(dtype: torch.dtype) -> None:
    stock, ours = _pair(gemma2, dtype)
    batch = padded_batch()
    expected = _exact_loss(stock, batch)
    expected.backward()
    cap, labels = ours.config.final_logit_softcapping, batch["labels"]
    for wrong, wrong_cap in ((labels.roll(1, dims=1), cap), (labels.clamp(min=0), cap), (labels, None)):
        ours.config.final_logit_softcapping = wrong_cap
        ours.zero_grad()
        loss = ours(**{**batch, "labels": wrong}).loss
        loss.backward()
        assert abs(loss.item() - expected.item()) > 100 * LOSS_BUDGET
        assert difference(ours, stock) > 4 * EXACT_BUDGET[dtype]


def test_micro_batches_with_num_items_are_one_batch() -> None:
    stock, ours = _pair(llama)
    batch = padded_batch()
    stock(**batch).loss.backward()
    items = (batch["labels"][:, 1:] != -100).sum()
    for row in range(BATCH):
        ours(**{name: value[row : row + 1] for name, value in batch.items()}, num_items_in_batch=items).loss.backward()
    assert difference(ours, stock) <= GRADIENT_BUDGET[torch.float32]


def test_no_tensor_has_the_size_of_the_logits() -> None:
    _, ours = _pair(llama)
    with OperatorLog() as log:
        ours(**padded_batch()).loss.backward()
    sizes = [torch.Size(shape).numel() for _, shape in log.calls if shape is not None]
    assert max(sizes) < BATCH * LENGTH * VOCABULARY
    with OperatorLog() as log:
        ours.eval()(**padded_batch())
    assert (BATCH, LENGTH, VOCABULARY) in [shape for _, shape in log.calls]


@pytest.mark.parametrize(
    "kept",
    [5, torch.tensor([1, 4, 10]), torch.tensor([[0, 3], [1, 2], [7, 9]]), torch.arange(36).view(3, 12) % 5 == 0],
    ids=["last", "positions", "positions of each", "mask"],
)
def test_logits_to_keep_keeps_hidden_states(kept: Any) -> None:
    """The reference takes the same of all logits: transformers before 5.23 takes no positions of each sequence."""
    from transformers import __version__

    if isinstance(kept, Tensor) and kept.dim() == 2 and tuple(map(int, __version__.split(".")[:2])) < (5, 23):
        pytest.skip(f"transformers {__version__} takes no positions of each sequence")
    stock, ours = _pair(llama)
    batch = padded_batch()
    labels = batch.pop("labels")
    logits = stock(**batch).logits
    if isinstance(kept, int):
        chosen = [array[:, -kept:].contiguous() for array in (logits, labels)]
    elif kept.dtype == torch.bool:
        chosen = [array[kept] for array in (logits, labels)]
    else:
        at = torch.arange(BATCH)[:, None], kept.expand(BATCH, -1)
        chosen = [array[at] for array in (logits, labels)]
    expected = stock.loss_function(*chosen, vocab_size=VOCABULARY)
    loss = ours(**batch, labels=chosen[1], logits_to_keep=kept).loss
    assert abs(expected.item() - loss.item()) <= LOSS_BUDGET
    with pytest.raises(ValueError, match="Expected input batch_size"):  # of PyTorch, as from the stock model
        ours(**padded_batch(), logits_to_keep=kept)


def test_shift_labels_and_ignore_index_are_the_models() -> None:
    stock, ours = _pair(llama)
    batch = padded_batch()
    plain = ours(**batch).loss.item()
    shifted = F.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    of_targets = {**batch, "shift_labels": shifted, "labels": 0 * shifted}
    of_others = {**batch, "labels": batch["labels"].clamp(min=0), "ignore_index": batch["labels"][0, 3].item()}
    for item, is_plain in ((of_targets, True), (of_others, False)):
        losses = [model(**item).loss.item() for model in (stock, ours)]
        assert abs(losses[0] - losses[1]) <= LOSS_BUDGET
        assert (abs(losses[1] - plain) <= LOSS_BUDGET) == is_plain


def test_a_tuple_keeps_its_places() -> None:
    stock, ours = _pair(llama)
    for further in ({"return_dict": False}, {"return_dict": False, "output_hidden_states": True}):
        theirs, output = stock(**padded_batch(), **further), ours(**padded_batch(), **further)
        assert isinstance(output, tuple) and [type(item) for item in output[2:]] == [type(item) for item in theirs[2:]]
        assert isinstance(output[1], LazyLogits) and abs(output[0].item() - theirs[0].item()) <= LOSS_BUDGET


def test_generation_and_evaluation_have_logits() -> None:
    stock, ours = _pair(gemma2)
    batch = padded_batch()
    prompt = {"input_ids": batch["input_ids"][:, :5], "max_new_tokens": 4, "do_sample": False}
    for training in (True, False):
        for model in (stock, ours):
            model.train(training)
        assert torch.equal(ours.generate(**prompt), stock.generate(**prompt))
    theirs, output = stock(**batch), ours(**batch)
    assert torch.equal(output.logits, theirs.logits) and torch.equal(output.loss, theirs.loss)


def test_options_of_the_loss_are_for_training() -> None:
    stock, ours = _pair(llama)
    batch = padded_batch()
    Undo(ours)()
    with fuse_linear_loss(ours, evaluation=True, label_smoothing=0.1, lse_square_scale=0.1):
        assert ours(**batch).loss.item() > stock(**batch).loss.item()
        output = ours.eval()(**batch)
        assert isinstance(output.logits, LazyLogits)
        assert abs(output.loss.item() - stock.eval()(**batch).loss.item()) <= LOSS_BUDGET


@pytest.mark.parametrize("option", [{"label_smoothing": 0.1}, {"lse_square_scale": 0.1}, {"memory_limit": 2**30}])
def test_options_are_those_of_the_loss(option: dict[str, Any]) -> None:
    stock, ours = _pair(gemma2)
    Undo(ours)()
    fuse_linear_loss(ours, **option)
    batch = padded_batch()
    output = stock(**batch)
    recipe = {name: value for name, value in option.items() if name != "memory_limit"}
    expected = causal_lm_loss(output.logits, batch["labels"], VOCABULARY, **recipe)
    loss = ours(**batch).loss
    assert abs(loss.item() - expected.item()) <= LOSS_BUDGET
    assert (abs(loss.item() - output.loss.item()) > 100 * LOSS_BUDGET) == bool(recipe)
    expected.backward()
    loss.backward()
    assert difference(ours, stock) <= GRADIENT_BUDGET[torch.float32]


def test_a_bias_of_the_output_layer_counts() -> None:
    stock, _ = pair(llama)
    stock.lm_head.bias = torch.nn.Parameter(torch.randn(VOCABULARY))
    ours = copy.deepcopy(stock)
    fuse_linear_loss(ours)
    losses = [model.train()(**padded_batch()).loss for model in (stock, ours)]
    for loss in losses:
        loss.backward()
    assert abs(losses[0].item() - losses[1].item()) <= 2 * LOSS_BUDGET
    assert difference(ours, stock) <= GRADIENT_BUDGET[torch.float32]


def test_gradient_checkpointing_changes_nothing() -> None:
    stock, ours = _pair(llama)
    ours.gradient_checkpointing_enable()
    for model in (stock, ours):
        model(**padded_batch(), use_cache=False).loss.backward()
    assert difference(ours, stock) <= GRADIENT_BUDGET[torch.float32]


@TYPES
def test_autocast_casts_the_output_layer(dtype: torch.dtype) -> None:
    stock, ours = _pair(llama)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss, expected = ours(**padded_batch()).loss, stock(**padded_batch()).loss
    # Stock logits, of which the largest is below 8, are rounded to bfloat16 there, and ours are not.
    rounding = 8 * 2.0**-9 if dtype == torch.bfloat16 else 0.0
    assert loss.dtype == torch.float32 and abs(loss.item() - expected.item()) <= LOSS_BUDGET + rounding
    loss.backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


@pytest.mark.parametrize("make", [llama, pytest.param(gemma2, marks=pytest.mark.sweep)])
def test_a_full_graph_gives_equal_results(make: Make, compile_afresh: None) -> None:
    _, ours = _pair(make)
    compiled: Any = torch.compile(copy.deepcopy(ours), fullgraph=True, backend="aot_eager")
    items = torch.tensor(40)
    output, expected = (model(**padded_batch(), num_items_in_batch=items) for model in (compiled, ours))
    assert isinstance(output.logits, LazyLogits) and torch.equal(output.loss, expected.loss)
    output.loss.backward()
    expected.loss.backward()
    assert difference(compiled._orig_mod, ours) <= GRADIENT_BUDGET[torch.float32]


def test_arguments_may_be_positional() -> None:
    _, ours = _pair(llama)
    batch = padded_batch()
    positional = ours(batch["input_ids"], batch["attention_mask"], None, None, None, batch["labels"])
    assert isinstance(positional.logits, LazyLogits) and torch.equal(positional.loss, ours(**batch).loss)


def test_a_deep_copy_is_fused_by_itself() -> None:
    _, ours = _pair(llama)
    other = copy.deepcopy(ours)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    Undo(ours)()
    assert isinstance(ours(**padded_batch()).logits, Tensor)
    output = other(**padded_batch())
    assert isinstance(output.logits, LazyLogits)
    assert output.loss.item() == pytest.approx(torch.tensor(float(VOCABULARY)).log().item()), "of its own parameters"
    Undo(other)()
    assert isinstance(other(**padded_batch()).logits, Tensor)


def test_it_is_undone_once_and_may_come_again() -> None:
    stock, _ = pair(llama)
    before = set(vars(stock))
    for _ in range(2):
        undo = fuse_linear_loss(stock)
        assert isinstance(stock.train()(**padded_batch()).logits, LazyLogits)
        with pytest.raises(
            ValueError, match="has been fused already; undo it by the object that fuse_linear_loss returned"
        ):
            fuse_linear_loss(stock)
        undo()
        undo()
        assert set(vars(stock)) == before
        assert isinstance(stock(**padded_batch()).logits, Tensor)
    with pytest.raises(KeyError), fuse_linear_loss(stock):
        raise KeyError
    assert set(vars(stock)) == before


def test_losses_and_forwards_of_others_run() -> None:
    stock, ours = _pair(llama)
    batch = padded_batch()
    for model in (stock, ours):
        model.loss_function = functools.partial(causal_lm_loss, label_smoothing=0.1)
    expected, output = stock(**batch), ours(**batch)
    assert abs(output.loss.item() - expected.loss.item()) <= LOSS_BUDGET and isinstance(output.logits, LazyLogits)
    forward = ours.forward
    ours.forward = MethodType(lambda self, **inputs: (forward(**inputs).loss * 2,), ours)
    assert ours(**batch)[0].item() == 2 * output.loss.item()


def test_old_names_are_the_new_ones() -> None:
    import nkilib.torch.transformers as before

    with pytest.warns(FutureWarning, match="NoLogits is deprecated since nkilib 0.3 .* use nkilib.torch.LazyLogits"):
        assert before.NoLogits is LazyLogits
    assert before.fuse_linear_loss is fuse_linear_loss and before.Undo is Undo
