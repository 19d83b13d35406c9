# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Output layer and loss in chunks of tokens against both in one piece in float64, and results computed inside the
forward of a layer that ``fully_shard`` was given, in a group of one process.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.reductions import StorageWeakRef

from nkilib.torch import LinearCrossEntropyLoss, cross_entropy, linear_cross_entropy
from nkilib.torch.functions.output_layer import check_linear_head, chunked_loss, results_in_forward
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, make_logits, make_targets
from tests.torch.telling import assert_gradient, assert_loss

SHAPE, WIDTH = (2, 7), 6
TOKENS = 14
HIDDEN, TARGET = make_logits(*SHAPE, WIDTH, spread=1.0), make_targets(*SHAPE, ignored=-100)
UPSTREAM = 0.25
# A gradient of hidden is a sum over classes of |weight| < 4, one of the weight a sum over tokens of |hidden| < 4.
SCALE = 4.0 * TOKENS


def sum_of_losses(logits: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(logits, target, reduction="sum", inplace=True)


def new_head(dtype: torch.dtype = torch.float32) -> nn.Linear:
    head = nn.Linear(WIDTH, CLASSES)
    head.load_state_dict({"weight": make_logits(CLASSES, WIDTH, seed=5, spread=1.0), "bias": make_logits(CLASSES)})
    return head.to(dtype)


class Seen(nn.Module):
    """An output layer that knows how many tokens it was given, and that their logits are gone before the next ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.tokens: list[int] = []
        self.logits: list[StorageWeakRef] = []

    def forward(self, hidden: Tensor) -> Tensor:
        self.tokens.append(hidden.shape[0])
        assert all(item.expired() for item in self.logits)
        logits: Tensor = self.layer(hidden)
        self.logits.append(StorageWeakRef(logits.untyped_storage()))
        return logits


@pytest.mark.parametrize("num_chunks", [1, 2, 4, 20])
def test_loss_and_gradients_are_those_of_one_piece(num_chunks: int) -> None:
    head, hidden = Seen(new_head()), HIDDEN.clone().requires_grad_()
    exact_head, exact = new_head().double(), HIDDEN.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact_head(exact).flatten(0, 1), TARGET.flatten(), reduction="sum")
    (UPSTREAM * expected).backward()
    loss = chunked_loss(1.0 * hidden, TARGET, head, sum_of_losses, num_chunks)
    assert head.layer.weight.grad is None, "gradients come with the backward"
    (UPSTREAM * loss).backward()
    assert max(head.tokens) == max(1, -(-TOKENS // num_chunks)) and sum(head.tokens) == TOKENS
    assert_loss(loss.detach(), expected.detach(), 20.0 * TOKENS)
    pairs = [(hidden, exact), *zip(head.parameters(), exact_head.parameters(), strict=True)]
    for actual, of_whole in pairs:
        assert actual.grad is not None and of_whole.grad is not None
        rows = actual.shape[-1]
        assert_gradient(actual.grad.view(-1, rows), of_whole.grad.view(-1, rows), UPSTREAM * SCALE)


def test_the_gradient_of_weights_is_summed_up_in_float32() -> None:
    """A bfloat16 sum loses 2^-9 after 1; 128 of them are a quarter."""
    head = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    tokens = torch.full((129, 1), 2.0**-9, dtype=torch.bfloat16)
    tokens[0] = 1.0

    def total(logits: Tensor, _: Tensor) -> Tensor:
        return logits.float().sum()

    chunked_loss(tokens, torch.zeros(129, dtype=torch.int64), head, total, 129).backward()
    assert head.weight.grad is not None and head.weight.grad.item() == 1.25


@pytest.mark.parametrize("frozen", ["hidden", "head"])
def test_what_needs_no_gradient_has_none(frozen: str) -> None:
    hidden, head = HIDDEN.clone(), new_head()
    hidden.requires_grad_(frozen == "head")
    head.requires_grad_(frozen == "hidden")
    chunked_loss(hidden, TARGET, head, sum_of_losses, 3).backward()
    assert [tensor.grad is None for tensor in (hidden, head.weight)] == [frozen == "hidden", frozen == "head"]


def test_without_gradients_there_is_the_loss_alone() -> None:
    hidden, head = HIDDEN.clone().requires_grad_(), new_head()
    expected = chunked_loss(hidden, TARGET, head, sum_of_losses, 3).detach()
    with torch.no_grad():
        validated = chunked_loss(hidden, TARGET, head, sum_of_losses, 3)
    assert torch.equal(validated, expected) and not validated.requires_grad


def test_a_second_backward_is_refused() -> None:
    loss = chunked_loss(HIDDEN.clone().requires_grad_(), TARGET, new_head(), sum_of_losses, 2)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="its gradients have been passed on, and their memory with them"):
        loss.backward()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with two_ranks():
        yield init_device_mesh("cpu", (2,), mesh_dim_names=("chunks",))


def test_what_it_refuses(mesh: DeviceMesh) -> None:
    from torch.distributed.tensor import DTensor, Shard

    head = new_head()
    with pytest.raises(ValueError, match="num_chunks must be 1 or more, got 0"):
        chunked_loss(HIDDEN, TARGET, head, sum_of_losses, 0)
    with pytest.raises(ValueError, match="a target for each of the 14 tokens of this rank, got 7"):
        chunked_loss(HIDDEN, TARGET[0], head, sum_of_losses, 2)
    in_parts = DTensor.from_local(HIDDEN, mesh, [Shard(2)], run_check=False)
    with pytest.raises(NotImplementedError, match=r"replicated or sharded by tokens, got .*; pass hidden.redistribute"):
        chunked_loss(in_parts, TARGET, head, sum_of_losses, 2)
    head.weight._is_flat_param = True  # type: ignore[attr-defined]  # as FullyShardedDataParallel marks its own
    with pytest.raises(NotImplementedError, match=r"use torch\.distributed\.fsdp\.fully_shard"):
        chunked_loss(HIDDEN, TARGET, head, sum_of_losses, 2)


HEAD_ROWS, HEAD_WIDTH, HEAD_CLASSES = 3, 16, 5


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _sharded_head() -> nn.Linear:
    """Return a float32 layer that is computed in bfloat16, with results that are cast to float16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    head = nn.Linear(HEAD_WIDTH, HEAD_CLASSES)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float16)
    fully_shard(head, reshard_after_forward=True, mp_policy=policy)  # which changes it where it is
    return head


def _several(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    assert bias is not None
    assert hidden.dtype == weight.dtype == bias.dtype == torch.bfloat16 and target.dtype == torch.int64
    logits = (hidden @ weight.T + bias).float()
    return logits.argmax(-1), logits.logsumexp(-1), logits.detach().amax(-1), 1.0 + 1e-6 * logits.sum()


@pytest.mark.usefixtures("group")
def test_every_result_keeps_its_type_its_bits_and_its_gradient() -> None:
    head, target = _sharded_head(), make_targets(HEAD_ROWS, classes=HEAD_CLASSES)
    hidden = make_logits(HEAD_ROWS, HEAD_WIDTH, seed=1).requires_grad_()
    plain = [item.full_tensor().bfloat16().requires_grad_() for item in (head.weight.detach(), head.bias.detach())]  # type: ignore[attr-defined]
    twin = hidden.detach().clone().requires_grad_()
    results = results_in_forward(head, hidden, target, _several)
    expected = _several(twin.bfloat16(), target, *plain)
    for actual, exact in zip(results, expected, strict=True):
        assert actual.dtype == exact.dtype and torch.equal(actual, exact)
        assert actual.requires_grad == exact.requires_grad and actual._base is None
    assert "forward" not in vars(head)
    (1e-6 * results[1]).sum().backward()  # of one result alone, with a gradient that float16 does not have
    (1e-6 * expected[1]).sum().backward()
    assert twin.grad is not None and twin.grad.abs().max() > 0 and torch.equal(hidden.grad, twin.grad)
    for parameter, exact in zip(head.parameters(), plain, strict=True):
        assert torch.equal(parameter.grad.full_tensor(), exact.grad.float())  # type: ignore[union-attr]


@pytest.mark.usefixtures("group")
def test_an_error_leaves_the_layer_its_forward() -> None:
    head = _sharded_head()

    def fails(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        raise IndexError("out of range")

    with pytest.raises(IndexError, match="out of range"):
        results_in_forward(
            head, make_logits(HEAD_ROWS, HEAD_WIDTH), make_targets(HEAD_ROWS, classes=HEAD_CLASSES), fails
        )
    assert "forward" not in vars(head)
    head.reset_iter_state()  # type: ignore[operator]  # what PyTorch asks for after an error
    assert head(make_logits(HEAD_ROWS, HEAD_WIDTH)).dtype == torch.float16


@pytest.mark.usefixtures("group")
def test_layers_that_do_more_than_a_product_are_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2.0 * super().forward(input)

    with pytest.raises(TypeError, match=r"loss: lm_head must be a torch.nn.Linear.*\.Scaled; do this"):
        check_linear_head("loss", fully_shard(Scaled(HEAD_WIDTH, HEAD_CLASSES)), "do this")
    head = _sharded_head()
    check_linear_head("loss", head, "")
    handle = head.register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match=r"loss: lm_head must have no hooks but those of fully_shard.*; do this"):
        check_linear_head("loss", head, "do this")
    handle.remove()
    check_linear_head("loss", head, "")


@pytest.mark.usefixtures("group")
def test_a_sharded_module_hands_its_gradient_to_no_sum() -> None:
    from torch.distributed.fsdp import fully_shard

    module = fully_shard(LinearCrossEntropyLoss(HEAD_WIDTH, HEAD_CLASSES))
    hidden, target = make_logits(HEAD_ROWS, HEAD_WIDTH), make_targets(HEAD_ROWS, classes=HEAD_CLASSES)
    with pytest.raises(
        NotImplementedError, match="grad_weight_sum is not supported where fully_shard shards this module"
    ):
        module(hidden, target, grad_weight_sum=torch.zeros(HEAD_CLASSES, HEAD_WIDTH))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("autocast", [False, True])
def test_the_loss_keeps_the_parameters_themselves_under_autocast_too(autocast: bool) -> None:
    """The parameters' memory is given back after the forward, and is there again in the backward."""
    from torch.distributed.fsdp import fully_shard

    whole, result = nn.Linear(HEAD_WIDTH, HEAD_CLASSES), []
    sharded = fully_shard(copy.deepcopy(whole), reshard_after_forward=True)
    target, kept = make_targets(HEAD_ROWS, classes=HEAD_CLASSES), []

    def losses(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
        return (linear_cross_entropy(hidden, weight, target, linear_bias=bias, reduction="none"),)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    for head in (whole, sharded):
        hidden = make_logits(HEAD_ROWS, HEAD_WIDTH, seed=1).requires_grad_()
        kept.clear()
        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), saving:
            (loss,) = results_in_forward(head, hidden, target, losses)
        of_classes = [tensor.untyped_storage().size() > 0 for tensor in kept if tensor.shape[0] == HEAD_CLASSES]
        assert of_classes == [head is whole] * 2, "weight and bias"
        loss.sum().backward()
        gradients = (parameter.grad for parameter in head.parameters())
        result.append(
            [loss, hidden.grad, *(getattr(gradient, "full_tensor", lambda it=gradient: it)() for gradient in gradients)]
        )
    assert all(torch.equal(*pair) for pair in zip(*result, strict=True))
