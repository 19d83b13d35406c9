# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``fuse_linear_loss`` of any module: which layer it takes, when that gives lazy logits, options, and the undo."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import LazyLogits, LogitsComputedWarning, Undo, fuse_linear_loss, fused_calls, linear_cross_entropy
from tests.torch.inputs import make_logits, make_targets
from tests.torch.lazy_logits.models import BATCH, FEATURES, LENGTH, VOCABULARY, Model, both, inputs, model

TARGET = make_targets(BATCH * LENGTH, classes=VOCABULARY)


class _Known(Model):
    """A model that knows its output layer, as those of transformers do."""

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class _Wrapper(nn.Module):
    """A model in a module, as adapters and data parallelism have it."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.module = wrapped

    def forward(self, inputs: Tensor) -> Any:
        return self.module(inputs)


def _is_lazy(made: nn.Module, batch: Tensor | None = None) -> bool:
    return isinstance(made(inputs() if batch is None else batch), LazyLogits)


def test_the_layer_is_what_the_model_says_a_path_or_the_layer() -> None:
    known, wrapped, by_path, by_layer = _Known(), _Wrapper(_Known()), model(), model()
    for made, head in ((known, None), (wrapped, None), (by_path, "head"), (by_layer, by_layer.head)):
        undo = fuse_linear_loss(made, head=head)
        assert _is_lazy(made)
        undo()
        assert not _is_lazy(made)
    with pytest.raises(ValueError, match=r"one output layer, .* got 0 in Model; pass head=.* layer is 'head'$"):
        fuse_linear_loss(model())
    with pytest.raises(ValueError, match=r"must have one output layer, .* got 2 in ModuleList; pass head="):
        fuse_linear_loss(nn.ModuleList([_Known(), _Known()]))
    with pytest.raises(ValueError, match=r"head must be the path of a module, got 'lm_head': .* layer is 'head'$"):
        fuse_linear_loss(model(), head="lm_head")
    with pytest.raises(ValueError, match=r"head must be a module of the model, got another Linear; .*head="):
        fuse_linear_loss(model(), head=nn.Linear(2, 3))
    with pytest.raises(TypeError, match=r"argument 'head' must be str or torch.nn.Module, not int"):
        fuse_linear_loss(model(), head=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"argument 'model' must be torch.nn.Module, not str"):
        fuse_linear_loss("gpt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_compute must be one of warn, ignore, raise, got 'never'"):
        fuse_linear_loss(model(), head="head", on_compute="never")
    for option, value, kind in (("evaluation", "no", "bool"), ("label_smoothing", "1", "float")):
        with pytest.raises(TypeError, match=f"fuse_linear_loss: argument '{option}' must be {kind}, not str"):
            fuse_linear_loss(model(), head="head", **{option: value})  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="label_smoothing"):
        fuse_linear_loss(model(), head="head", label_smoothing=1.5)


class _WithPart(_Known):
    """A model with a smaller one in it, which has an output layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.part = _Known()


def test_the_layer_of_a_model_within_a_model_is_no_other_layer() -> None:
    made = _Wrapper(_WithPart())
    fuse_linear_loss(made)
    assert _is_lazy(made) and not _is_lazy(made.module.part)


def test_a_layer_that_came_in_the_place_of_the_fused_one_says_that_it_computes_logits() -> None:
    made = _Known()
    undo = fuse_linear_loss(made)
    made.head = nn.Linear(FEATURES, VOCABULARY + 3)
    with pytest.warns(LogitsComputedWarning, match=r"the output layer \(Linear, which .* another weight"):
        assert not _is_lazy(made)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        made(inputs())
        made.eval()(inputs())
    fuse_linear_loss(made.train(), on_compute="raise")
    assert _is_lazy(made)
    undo()
    assert not made.head._forward_hooks and not made._forward_pre_hooks


class _Quantized(nn.Linear):
    """A layer that does more than multiply by its weight."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).round()


def test_other_layers_compute_logits_and_say_so() -> None:
    made = model()
    made.head = _Quantized(FEATURES, VOCABULARY)
    with pytest.warns(LogitsComputedWarning, match=r"must be a torch.nn.Linear.*_Quantized, whose logits are computed"):
        fuse_linear_loss(made, head="head")
    assert not _is_lazy(made)
    made = model()
    made.head.forward = made.head.forward  # as tensor parallelism of transformers replaces it
    with pytest.warns(LogitsComputedWarning, match=r"linear\.Linear with a forward of its own, whose logits are"):
        fuse_linear_loss(made, head="head")
    assert not _is_lazy(made)


def test_in_training_where_a_graph_is_recorded() -> None:
    ours = both().ours
    assert _is_lazy(ours)
    assert not _is_lazy(ours.eval())
    ours.train()
    with torch.no_grad():
        assert not _is_lazy(ours)
    with torch.inference_mode():
        assert not _is_lazy(ours)
    always = both(evaluation=True).ours
    with torch.no_grad():
        assert _is_lazy(always) and _is_lazy(always.eval())
    with torch.inference_mode():
        assert F.cross_entropy(always(inputs()).flatten(0, 1), TARGET).item() > 0


def test_transforms_traces_and_exports_have_logits() -> None:
    models = both()

    def loss(parameters: dict[str, Tensor], made: nn.Module) -> Tensor:
        logits: Tensor = torch.func.functional_call(made, parameters, (inputs(),))
        return logits.logsumexp(-1).sum()

    gradients = [torch.func.grad(loss)(dict(made.named_parameters()), made) for made in (models.stock, models.ours)]
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    rows = torch.func.vmap(models.ours)(inputs())
    assert isinstance(rows, Tensor) and torch.allclose(rows, models.stock(inputs()))


@pytest.mark.slow
def test_an_exported_program_computes_logits() -> None:
    models = both()
    program = torch.export.export(models.ours, (inputs(),))
    assert torch.allclose(program.module()(inputs()), models.stock(inputs()))


def test_what_no_kernel_takes_has_logits_and_says_why() -> None:
    cases = [
        (Model().double(), inputs().double(), "its input is torch.float64"),
        (model(), inputs()[0, 0], r"its input has shape \(16,\)"),
        (model(), inputs()[:0], r"its input has shape \(0, 5, 16\)"),
    ]
    small = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 9))
    for made, batch, reason in [*cases, (small, torch.ones(3, 4), "there are 4 features, and the kernels take 16")]:
        fuse_linear_loss(made, head="1" if made is small else "head")
        stock = type(made).forward(copy.deepcopy(made).eval(), batch)
        with pytest.warns(LogitsComputedWarning, match=rf"the output layer \({reason}"):
            logits = made(batch)
        assert torch.equal(logits, stock)


def test_hooks_of_the_layer_run_with_the_lazy_logits() -> None:
    models, seen = both(), []
    models.ours.head.register_forward_hook(lambda module, args, output: seen.append(output))
    models.ours.head.register_forward_hook(lambda module, args, output: output / 2)
    result = models.ours(inputs())
    assert seen[0].shape == result.shape and isinstance(result, LazyLogits)
    assert torch.equal(result.compute(), models.stock(inputs()) / 2)


def test_the_warning_names_function_place_and_bytes_once_a_place() -> None:
    ours = both(on_compute="warn").ours
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            ours(inputs()).sort(-1)
        F.softplus(ours(inputs()))
    messages = [str(item.message) for item in caught]
    assert len(messages) == 2 and all(item.filename == __file__ for item in caught)
    assert f"fuse_linear_loss: sort at {__file__}:" in messages[0] and "softplus" in messages[1]
    assert f"needs logits, {BATCH * LENGTH * VOCABULARY * 4:,} bytes" in messages[0]
    assert sorted(fused_calls(ours).computed.values()) == [1, 2]
    with pytest.raises(RuntimeError, match=r"fuse_linear_loss: sort at .* needs logits"):
        both(on_compute="raise").ours(inputs()).sort(-1)


def test_smoothing_and_z_loss_are_those_of_cross_entropies_in_training() -> None:
    options = {"label_smoothing": 0.1, "lse_square_scale": 0.01}
    models = both(on_compute="ignore", evaluation=True, **options)
    hidden, weight = models.stock.trunk(inputs()), models.stock.head.weight
    expected = linear_cross_entropy(hidden.flatten(0, 1), weight, TARGET, **options)
    logits = models.ours(inputs()).flatten(0, 1)
    assert torch.equal(F.cross_entropy(logits, TARGET), expected)
    assert torch.equal(F.nll_loss(logits.log_softmax(-1), TARGET), expected)
    with pytest.raises(ValueError, match=r"label_smoothing must be given once, got 0.1 here and 0.2 by the call"):
        F.cross_entropy(logits, TARGET, label_smoothing=0.2)
    with pytest.raises(RuntimeError, match=r"only cross-entropy may use the logits, got sort, .* pass 0 for both"):
        logits.sort(-1)
    plain = F.cross_entropy(models.ours.eval()(inputs()).flatten(0, 1), TARGET)
    assert abs(plain.item() - F.cross_entropy(models.stock(inputs()).flatten(0, 1), TARGET).item()) <= 1e-5
    assert models.ours(inputs()).sort(-1).values.shape == (BATCH, LENGTH, VOCABULARY)


def test_a_memory_limit_computes_gradients_in_the_forward() -> None:
    models = both(memory_limit=2**30)
    loss = F.cross_entropy(models.ours(inputs()).flatten(0, 1), TARGET)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute the loss again for another backward"):
        loss.backward()


def test_copies_pickles_and_states() -> None:
    models = both(on_compute="ignore")
    assert set(models.ours.state_dict()) == set(models.stock.state_dict())
    for other in (copy.deepcopy(models.ours), pickle.loads(pickle.dumps(models.ours)), models.ours.to(torch.float32)):
        if other is not models.ours:
            with torch.no_grad():
                other.head.weight.zero_()
            loss = F.cross_entropy(other(inputs()).flatten(0, 1), TARGET)
            assert loss.item() == pytest.approx(torch.tensor(float(VOCABULARY)).log().item()), "of its own weight"
            Undo(other)()
            assert not _is_lazy(other)
        assert _is_lazy(models.ours)


def test_it_is_undone_once_and_may_come_again() -> None:
    made = model()
    before = {name: set(vars(module)) for name, module in made.named_modules()}
    for _ in range(2):
        undo = fuse_linear_loss(made, head="head")
        with pytest.raises(ValueError, match="has been fused already; undo it by the object"):
            fuse_linear_loss(made, head="head")
        undo()
        undo()
        assert {name: set(vars(module)) for name, module in made.named_modules()} == before
        assert not made._forward_pre_hooks and not made._forward_pre_hooks_with_kwargs
    with pytest.raises(KeyError), fuse_linear_loss(made, head="head"):
        raise KeyError
    with pytest.raises(ValueError, match=r"fused_calls: model must be fused, got Model; call fuse_linear_loss"):
        fused_calls(made)


def test_skip_logits_of_a_call_decides_and_is_deprecated() -> None:
    ours = both(on_compute="ignore").ours
    with pytest.warns(FutureWarning, match="skip_logits of a fused model is deprecated since nkilib 0.3"):
        assert isinstance(ours(inputs(), skip_logits=False), Tensor)
    with pytest.warns(FutureWarning):
        assert isinstance(ours.eval()(inputs(), skip_logits=True), LazyLogits)
    assert isinstance(ours(inputs()), Tensor), "for one call"


class _Adapted(nn.Module):
    """An output layer with LoRA, as PEFT writes it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A, self.lora_B = nn.Linear(FEATURES, rank, bias=False), nn.Linear(rank, VOCABULARY, bias=False)

    def forward(self, input: Tensor) -> Any:
        result = self.base_layer(input)
        return (result + self.lora_B(self.lora_A(input)) * 0.5).to(result.dtype)


@pytest.mark.parametrize("bias", [False, True])
def test_the_sum_of_a_layer_and_its_adapter_is_one_product(bias: bool) -> None:
    models = both(bias)
    Undo(models.ours)()
    torch.manual_seed(2)
    for made in (models.stock, models.ours):
        made.head = _Adapted(made.head)  # type: ignore[assignment]
    models.ours.load_state_dict(models.stock.state_dict())
    fuse_linear_loss(models.ours, head="head", on_compute="raise")
    losses = []
    for made in (models.stock, models.ours):
        logits = made(inputs())
        loss = F.cross_entropy(logits.flatten(0, 1), TARGET) + logits.logsumexp(-1).mean()
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for theirs, ours in zip(models.stock.parameters(), models.ours.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 1e-5 * theirs.grad.norm()


def test_a_batch_of_another_process_may_differ_in_shape() -> None:
    ours = both().ours
    for length in (1, 3, 7):
        assert ours(make_logits(BATCH, length, FEATURES)).shape == (BATCH, length, VOCABULARY)
