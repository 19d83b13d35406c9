# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results computed inside the forward of a layer that ``fully_shard`` was given, in a group of one process."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy
from nkilib.torch.functions.head_forward import check_linear_head, results_in_forward
from tests.torch.inputs import make_logits, make_targets

TOKENS, WIDTH, CLASSES = 3, 16, 5


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _sharded_head() -> nn.Linear:
    """Return a float32 layer that is computed in bfloat16, with results that are cast to float16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    head = nn.Linear(WIDTH, CLASSES)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float16)
    fully_shard(head, reshard_after_forward=True, mp_policy=policy)  # which changes it where it is
    return head


def _several(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    assert bias is not None
    assert hidden.dtype == weight.dtype == bias.dtype == torch.bfloat16 and target.dtype == torch.int64
    logits = (hidden @ weight.T + bias).float()
    return logits.argmax(-1), logits.logsumexp(-1), logits.detach().amax(-1), 1.0 + 1e-6 * logits.sum()


def test_every_result_keeps_its_type_its_bits_and_its_gradient() -> None:
    head, target = _sharded_head(), make_targets(TOKENS, classes=CLASSES)
    hidden = make_logits(TOKENS, WIDTH, seed=1).requires_grad_()
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


def test_an_error_leaves_the_layer_its_forward() -> None:
    head = _sharded_head()

    def fails(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        raise IndexError("out of range")

    with pytest.raises(IndexError, match="out of range"):
        results_in_forward(head, make_logits(TOKENS, WIDTH), make_targets(TOKENS, classes=CLASSES), fails)
    assert "forward" not in vars(head)
    head.reset_iter_state()  # type: ignore[operator]  # what PyTorch asks for after an error
    assert head(make_logits(TOKENS, WIDTH)).dtype == torch.float16


def test_layers_that_do_more_than_a_product_are_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2.0 * super().forward(input)

    with pytest.raises(TypeError, match=r"loss: lm_head must be a torch.nn.Linear.*\.Scaled; do this"):
        check_linear_head("loss", fully_shard(Scaled(WIDTH, CLASSES)), "do this")
    head = _sharded_head()
    check_linear_head("loss", head, "")
    handle = head.register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match=r"loss: lm_head must have no hooks but those of fully_shard.*; do this"):
        check_linear_head("loss", head, "do this")
    handle.remove()
    check_linear_head("loss", head, "")


def test_a_sharded_module_hands_its_gradient_to_no_sum() -> None:
    from torch.distributed.fsdp import fully_shard

    module = fully_shard(LinearCrossEntropyLoss(WIDTH, CLASSES))
    hidden, target = make_logits(TOKENS, WIDTH), make_targets(TOKENS, classes=CLASSES)
    with pytest.raises(
        NotImplementedError, match="grad_weight_sum is not supported where fully_shard shards this module"
    ):
        module(hidden, target, grad_weight_sum=torch.zeros(CLASSES, WIDTH))


@pytest.mark.parametrize("autocast", [False, True])
def test_the_loss_keeps_the_parameters_themselves_under_autocast_too(autocast: bool) -> None:
    """The parameters' memory is given back after the forward, and is there again in the backward."""
    from torch.distributed.fsdp import fully_shard

    whole, result = nn.Linear(WIDTH, CLASSES), []
    sharded = fully_shard(copy.deepcopy(whole), reshard_after_forward=True)
    target, kept = make_targets(TOKENS, classes=CLASSES), []

    def losses(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
        return (linear_cross_entropy(hidden, weight, target, linear_bias=bias, reduction="none"),)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    for head in (whole, sharded):
        hidden = make_logits(TOKENS, WIDTH, seed=1).requires_grad_()
        kept.clear()
        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), saving:
            (loss,) = results_in_forward(head, hidden, target, losses)
        of_classes = [tensor.untyped_storage().size() > 0 for tensor in kept if tensor.shape[0] == CLASSES]
        assert of_classes == [head is whole] * 2, "weight and bias"
        loss.sum().backward()
        gradients = (parameter.grad for parameter in head.parameters())
        result.append(
            [loss, hidden.grad, *(getattr(gradient, "full_tensor", lambda it=gradient: it)() for gradient in gradients)]
        )
    assert all(torch.equal(*pair) for pair in zip(*result, strict=True))
