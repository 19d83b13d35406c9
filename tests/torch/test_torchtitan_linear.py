# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses of ``nkilib.torch.torchtitan`` from hidden states, and its installation on modules with TorchTitan's names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch.torchtitan import ChunkedCrossEntropyLoss, LinearCrossEntropyLoss, compute_linear_logprobs, install
from nkilib.torch.torchtitan import CrossEntropyLoss as LogitsLoss
from tests.torch import torchtitan_stand_in
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, make_logits, make_targets
from tests.torch.telling import GRADIENT_UNITS, LOSS_UNITS, UNIT, assert_telling
from tests.torch.torchtitan_stand_in import DAPO, LOSSES, ChunkedLossWrapper, CrossEntropyLoss, DAPOLoss, MTPLoss

# Many tests install for devices that are not here.
pytestmark = pytest.mark.filterwarnings("ignore:.*devices must include 'cpu' where nkilib runs on its simulator")
SHAPE, WIDTH, VALID = (2, 6), 16, 7.0
HIDDEN, LABELS = make_logits(*SHAPE, WIDTH, spread=1.0), make_targets(*SHAPE, ignored=-100)
POLICY = {
    "generator_logprobs": make_logits(*SHAPE, seed=6, spread=0.3) - 3.0,
    "advantages": make_logits(*SHAPE, seed=7, spread=1.0),
    "loss_mask": LABELS != -100,
}
GRADIENT = GRADIENT_UNITS * UNIT * 8.0


def make_head(bias: bool = True) -> nn.Linear:
    head = nn.Linear(WIDTH, CLASSES, bias=bias)
    with torch.no_grad():
        head.weight.copy_(make_logits(CLASSES, WIDTH, seed=4, spread=0.6))
        if bias:
            head.bias.copy_(make_logits(CLASSES, seed=5, spread=1.0))
    return head


def with_gradients(loss_of: Callable[..., Any], dtype: torch.dtype, **inputs: Any) -> tuple[Tensor, ...]:
    """Loss, metrics, and the gradients of twice the loss by hidden states and the parameters of the head."""
    head, hidden = make_head().to(dtype), HIDDEN.to(dtype, copy=True).requires_grad_()
    loss_of.set_lm_head(head)  # type: ignore[attr-defined]
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    loss, metrics = loss_of(hidden, LABELS, torch.tensor(VALID), **inputs)
    gradients = torch.autograd.grad(2.0 * loss, (hidden, *head.parameters()))
    return loss.detach(), *metrics.values(), *gradients


def assert_same(results: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> None:
    assert len(results) == len(exact)
    for ours, theirs in zip(results, exact, strict=True):
        tolerance = GRADIENT if ours.dim() else LOSS_UNITS * UNIT * 8.0
        if ours.dim():
            assert_telling(ours, theirs, 0.0, tolerance)
        else:
            torch.testing.assert_close(ours.double(), theirs, rtol=0.0, atol=tolerance)


@pytest.fixture
def titan(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return torchtitan_stand_in.put_in_place(monkeypatch)


@pytest.mark.parametrize("memory_limit", [None, 2**20])
def test_loss_and_gradients_from_hidden_states(memory_limit: int | None) -> None:
    exact = with_gradients(ChunkedLossWrapper(CrossEntropyLoss()), torch.float64)
    assert_same(with_gradients(LinearCrossEntropyLoss(memory_limit=memory_limit), torch.float32), exact)


def of_tuples(loss_of: Any, dtype: torch.dtype, depths: int) -> tuple[Tensor, ...]:
    """Loss and gradients of multi-token prediction, where each depth has hidden states and labels of its own."""
    head, hidden = make_head().to(dtype), HIDDEN.to(dtype, copy=True).requires_grad_()
    loss_of.set_lm_head(head)
    states = tuple(hidden * (1.0 - 0.5 * depth) for depth in range(depths))
    labels = tuple(LABELS.roll(-depth, 1) for depth in range(depths))
    loss, metrics = loss_of(states, labels, torch.tensor(VALID))
    assert metrics == {}
    return loss.detach(), *torch.autograd.grad(2.0 * loss, (hidden, *head.parameters()))


@pytest.mark.parametrize("depths", [2, 3])
@pytest.mark.parametrize(
    "ours",
    [
        LinearCrossEntropyLoss(mtp_scale=0.5),
        LinearCrossEntropyLoss(mtp_scale=0.5, memory_limit=2**20),
        ChunkedCrossEntropyLoss(loss=LogitsLoss(mtp_scale=0.5, inplace=True)),
        ChunkedLossWrapper(LogitsLoss(mtp_scale=0.5)),
    ],
    ids=["linear", "linear, one launch", "chunks", "logits"],
)
def test_tuples_of_multi_token_prediction(ours: Any, depths: int) -> None:
    exact = of_tuples(ChunkedLossWrapper(MTPLoss()), torch.float64, depths)
    assert_same(of_tuples(ours, torch.float32, depths), exact)


def test_the_wrapper_of_multi_token_prediction_makes_no_logits(titan: dict[str, Any]) -> None:
    exact = of_tuples(titan[LOSSES].ChunkedLossWrapper(MTPLoss()), torch.float64, 3)
    assert ChunkedLossWrapper.calls == 1
    with install(devices=("cpu",)):
        result = of_tuples(titan[LOSSES].ChunkedLossWrapper(MTPLoss()), torch.float32, 3)
        assert ChunkedLossWrapper.calls == 1
        other = of_tuples(titan[LOSSES].ChunkedLossWrapper(OwnOfTuples()), torch.float32, 2)
    assert_same(result, exact)
    assert ChunkedLossWrapper.calls == 2 and other[0] == 0.0


@pytest.mark.parametrize(
    ("pred", "labels"),
    [((HIDDEN,), (LABELS,)), ((HIDDEN, HIDDEN), (LABELS,)), ((HIDDEN, HIDDEN), LABELS), (HIDDEN, (LABELS, LABELS))],
)
def test_tuples_that_do_not_match_are_refused(pred: Any, labels: Any) -> None:
    loss = LinearCrossEntropyLoss(make_head())
    with pytest.raises(ValueError, match="LinearCrossEntropyLoss: pred and labels must be two tensors, or two tuples"):
        loss(pred, labels, VALID)


@pytest.mark.parametrize(("loss", "inputs"), [(CrossEntropyLoss, {}), (DAPOLoss, POLICY)])
def test_the_wrapper_that_is_installed_makes_no_logits(
    loss: type, inputs: dict[str, Tensor], titan: dict[str, Any]
) -> None:
    exact = with_gradients(titan[LOSSES].ChunkedLossWrapper(loss()), torch.float64, **inputs)
    assert ChunkedLossWrapper.calls == 1
    with install(devices=("cpu",)):
        result = with_gradients(titan[LOSSES].ChunkedLossWrapper(loss()), torch.float32, **inputs)
    assert ChunkedLossWrapper.calls == 1
    assert_same(result, exact)


def test_logprobs_from_hidden_states() -> None:
    head = make_head()
    exact, entropy = torchtitan_stand_in.compute_logprobs(
        HIDDEN.double() @ head.weight.double().T + head.bias.double(), LABELS, return_entropy=True
    )
    logprob, of_policy = compute_linear_logprobs(HIDDEN, head, LABELS, return_entropy=True)
    assert_telling(logprob.detach(), exact.detach(), 0.0, LOSS_UNITS * UNIT * 8.0)
    assert_telling(of_policy, entropy.detach(), 0.0, LOSS_UNITS * UNIT * 8.0)
    assert not of_policy.requires_grad
    alone = compute_linear_logprobs(HIDDEN, head, LABELS)
    assert torch.equal(alone, logprob)  # type: ignore[arg-type]


class Capped(nn.Linear):
    """An output layer with more than a product and a bias."""

    def forward(self, input: Tensor) -> Tensor:
        return 30.0 * torch.tanh(super().forward(input) / 30.0)


class Own:
    """A loss that looks at the logits."""

    def __call__(self, pred: Tensor, labels: Tensor, global_valid_tokens: Any = None) -> tuple[Tensor, dict[str, Any]]:
        return pred.sum(), {}


class OwnOfTuples:
    """A loss of tuples that looks at the logits."""

    def __call__(self, pred: Any, labels: Any, global_valid_tokens: Any = None) -> tuple[Tensor, dict[str, Any]]:
        return sum(0.0 * logits.sum() for logits in pred), {}  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("loss", "head", "hidden", "devices"),
    [
        pytest.param(Own(), make_head(), HIDDEN, ("cpu",), id="another loss"),
        pytest.param(CrossEntropyLoss(), Capped(WIDTH, CLASSES), HIDDEN, ("cpu",), id="another head"),
        pytest.param(CrossEntropyLoss(), make_head().double(), HIDDEN.double(), ("cpu",), id="float64"),
        pytest.param(CrossEntropyLoss(), nn.Linear(8, CLASSES), HIDDEN[..., :8], ("cpu",), id="few features"),
        pytest.param(CrossEntropyLoss(), make_head(), HIDDEN, ("neuron",), id="another device"),
    ],
)
def test_what_the_kernels_do_not_take_goes_to_torchtitan(
    loss: Any, head: nn.Module, hidden: Tensor, devices: tuple[str, ...], titan: dict[str, Any]
) -> None:
    expected, _ = loss(head(hidden), LABELS, VALID)
    wrapper = titan[LOSSES].ChunkedLossWrapper(loss)
    wrapper.set_lm_head(head)
    with install(devices):
        assert torch.equal(wrapper(hidden, LABELS, VALID)[0], expected)
    assert ChunkedLossWrapper.calls == 1


def test_functions_are_installed_where_they_were_imported_and_put_back(titan: dict[str, Any]) -> None:
    theirs = {name: dict(vars(titan[name])) for name in (LOSSES, DAPO)}
    own_call = titan[LOSSES].ChunkedLossWrapper.__call__
    logits = make_logits(*SHAPE, CLASSES)
    with install(devices=("cpu",)):
        ours = titan[DAPO].compute_logprobs
        assert ours is titan[LOSSES].compute_logprobs is not theirs[DAPO]["compute_logprobs"]
        for item, expected in zip(
            ours(logits, LABELS, return_entropy=True),
            torchtitan_stand_in.compute_logprobs(logits.double(), LABELS, return_entropy=True),
            strict=True,
        ):
            assert_telling(item, expected, 0.0, LOSS_UNITS * UNIT * 20.0)
        loss = titan[LOSSES].cross_entropy_loss
        expected = torchtitan_stand_in.cross_entropy_loss(logits.double(), LABELS)
        torch.testing.assert_close(loss(logits, LABELS).double(), expected)
        assert torch.equal(loss(logits.double(), LABELS), expected)
        with pytest.raises(ValueError, match="installed already; call the object that it returned first"):
            install()
    assert {name: dict(vars(titan[name])) for name in (LOSSES, DAPO)} == theirs
    assert titan[LOSSES].ChunkedLossWrapper.__call__ is own_call
    with pytest.raises(TypeError, match=r"not 'cpu'; pass \('cpu',\)"):
        install("cpu")
    with pytest.raises(ValueError, match="devices must name one or more of neuron, xla, cpu"):
        install(())


def test_an_installation_without_effect_on_the_simulator_warns(titan: dict[str, Any]) -> None:
    with pytest.warns(
        UserWarning, match=r"^nkilib\.torch\.torchtitan\.install: devices must include 'cpu' .* got 'neuron'"
    ):
        install()()


def test_another_release_is_named_and_other_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    titan = torchtitan_stand_in.put_in_place(monkeypatch, "0.4.0")
    with pytest.warns(UserWarning, match=r"knows torchtitan 0\.3\.0, got 0\.4\.0; the arguments .* are the same"):
        install()()
    monkeypatch.setattr(titan[LOSSES], "compute_logprobs", lambda logits, labels, temperature: None)
    message = (
        r"compute_logprobs must be called with \(logits, labels, \*, return_entropy=False\), got "
        r"\(logits, labels, temperature\); it knows torchtitan 0\.3\.0 and there is 0\.4\.0"
    )
    with pytest.raises(RuntimeError, match=message):
        install()


def test_heads_that_are_refused() -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    loss = LinearCrossEntropyLoss()
    with pytest.raises(RuntimeError, match="the output layer must be set, and is not; call set_lm_head"):
        loss(HIDDEN, LABELS)
    with pytest.raises(TypeError, match=r"lm_head must be a torch\.nn\.Linear with the forward of that, got Capped"):
        loss.set_lm_head(Capped(WIDTH, CLASSES))
    with two_ranks():
        mesh, head = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), make_head(bias=False)
        head.weight = nn.Parameter(distribute_tensor(head.weight.detach(), mesh, [Shard(0)]))
        with pytest.raises(NotImplementedError, match="must be whole on every rank, got placements"):
            loss.set_lm_head(head)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Trunk(nn.Module):
    """A model that returns hidden states, and whose output layer the loss applies."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), make_head()

    def forward(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden)
        return normed


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("error:.*returned a view tensor")
@pytest.mark.parametrize("reshard", [False, True])
@pytest.mark.parametrize(("loss", "inputs"), [(CrossEntropyLoss, {}), (DAPOLoss, POLICY), (MTPLoss, {})])
def test_a_head_that_fully_shard_has_sharded_with_the_norm_as_torchtitan_does(
    loss: type, inputs: dict[str, Tensor], reshard: bool, titan: dict[str, Any]
) -> None:
    from torch.distributed.fsdp import fully_shard

    wrapped, gradients = titan[LOSSES].ChunkedLossWrapper(loss()), []
    for shards in (False, True):
        model = Trunk()
        wrapped.set_lm_head(model.lm_head)
        if shards:
            fully_shard([model.norm, model.lm_head], reshard_after_forward=reshard)
            fully_shard(model)
        hidden = HIDDEN.clone().requires_grad_()

        def loss_of(states: Tensor) -> Tensor:
            given: Any = ((states, 0.5 * states), (LABELS, LABELS)) if loss is MTPLoss else (states, LABELS)
            result: Tensor = wrapped(*given, VALID, **inputs)[0]
            return result

        with install(devices=("cpu",)):
            value = loss_of(model(hidden))
        (3.0 * value).backward()
        assert "forward" not in vars(model.lm_head)
        results = [hidden.grad, *(parameter.grad for parameter in model.parameters())]
        gradients.append(
            [value.detach(), *(getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)() for tensor in results)]
        )
        with torch.no_grad():  # as a validation
            torch.testing.assert_close(loss_of(model(hidden)), value.detach())
    assert ChunkedLossWrapper.calls == 2
    for whole, sharded in zip(*gradients, strict=True):
        torch.testing.assert_close(sharded, whole, rtol=0.0, atol=GRADIENT)
        assert whole.any()


@pytest.mark.usefixtures("alone")
def test_scores_of_a_sharded_head_are_not_rounded_to_the_types_of_its_policy() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    head, result = make_head().bfloat16(), []
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.bfloat16)
    for item in (head, fully_shard(copy.deepcopy(head), mp_policy=policy)):
        hidden = HIDDEN.bfloat16().requires_grad_()
        logprob, entropy = compute_linear_logprobs(hidden, item, LABELS, return_entropy=True)
        assert not entropy.requires_grad
        (1e-3 * logprob).sum().backward()
        weight = item.weight.grad
        result.append((logprob.detach(), entropy, hidden.grad, getattr(weight, "full_tensor", lambda it=weight: it)()))
    for whole, sharded in zip(*result, strict=True):
        assert whole.dtype == sharded.dtype and torch.equal(whole, sharded) and whole.any()
