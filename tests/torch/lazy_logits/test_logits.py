# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Lazy logits as an object: what they say of themselves, changes in place, what they were when, copies and graphs."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import LazyLogits, fused_calls
from tests.torch.inputs import make_targets
from tests.torch.lazy_logits.models import BATCH, LENGTH, VOCABULARY, Use, both, inputs

TARGET = make_targets(BATCH * LENGTH, classes=VOCABULARY)


def test_it_says_what_the_tensor_would_without_computing_it() -> None:
    stock, ours = both(dtype=torch.bfloat16).results(lambda z: z)
    assert not isinstance(ours, Tensor) and "not computed" in repr(ours)
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "itemsize", "nbytes", "layout"):
        assert getattr(ours, name) == getattr(stock, name), name
    for name in ("is_cuda", "is_sparse", "is_quantized", "is_meta", "is_nested", "is_cpu"):
        assert getattr(ours, name) == getattr(stock, name), name
    for name in ("dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "size", "get_device"):
        assert getattr(ours, name)() == getattr(stock, name)(), name
    assert ours.size(-1) == VOCABULARY and len(ours) == BATCH and ours.is_contiguous()
    assert torch.is_floating_point(ours) and not torch.is_tensor(ours)
    assert torch.zeros(2).to(ours).dtype == torch.zeros(2).type_as(ours).dtype == torch.bfloat16
    with pytest.raises(AttributeError, match="has no attribute 'to_logits'"):
        ours.to_logits()
    assert (ours._computed is None and hash(ours) == id(ours) // 16) or hash(ours) is not None


def test_a_frozen_model_gives_logits_that_need_no_gradient() -> None:
    models = both(evaluation=True)
    models.ours.requires_grad_(False)
    logits = models.ours(inputs())
    assert isinstance(logits, LazyLogits) and not logits.requires_grad
    assert not F.cross_entropy(logits.flatten(0, 1), TARGET).requires_grad


CHANGES: dict[str, Use] = {
    "/=": lambda z: z.__itruediv__(2.0),
    "div_": lambda z: z.div_(2.0),
    "mul_": lambda z: z.mul_(0.5),
    "*=": lambda z: z.__imul__(0.5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_scale_in_place_of_logits_that_nothing_else_came_of_is_lazy(name: str) -> None:
    def use(z: Any) -> tuple[Any, Any]:
        changed = CHANGES[name](z)
        return z, changed

    (stock, _), (ours, changed) = both().results(use)
    assert changed is ours and isinstance(ours, LazyLogits)
    loss = F.cross_entropy(ours.flatten(0, 1), TARGET)
    assert abs(loss.item() - F.cross_entropy(stock.flatten(0, 1), TARGET).item()) <= 1e-5
    assert torch.equal(ours.compute(), stock)


def _of_a_view(z: Any) -> Any:
    view = z[:, 1:]
    z.div_(2.0)
    return torch.cat([view, z], dim=1)


def _into_a_view(z: Any) -> Any:
    view = z.view(-1, VOCABULARY)
    view[3] = 0.0
    return z * 1.0


def _beside_a_copy(z: Any) -> Any:
    copied = z[:, 1:].contiguous()
    z.mul_(3.0)
    return torch.cat([copied, z], dim=1)


def _with_masked_fill(z: Any) -> Any:
    z.masked_fill_(torch.arange(VOCABULARY) > 30, -1e4)
    return z.log_softmax(-1)


def _with_out(z: Any) -> Any:
    out = torch.empty(BATCH, LENGTH, VOCABULARY)
    with torch.no_grad():
        torch.mul(z, 2.0, out=out)
    return out


def _set_items(z: Any) -> Any:
    z[..., 5:] = -3.0
    return z


SHARED: dict[str, Callable[[Any], Any]] = {
    "of what a view came of": _of_a_view,
    "of a view": _into_a_view,
    "beside a copy": _beside_a_copy,
    "masked_fill_": _with_masked_fill,
    "out=": _with_out,
    "items": _set_items,
}


@pytest.mark.parametrize("name", SHARED)
def test_changes_in_place_are_seen_by_what_shares_memory_and_by_nothing_else(name: str) -> None:
    stock, ours = both(on_compute="ignore").results(SHARED[name])
    tensor = ours.compute() if isinstance(ours, LazyLogits) else ours
    assert torch.equal(tensor, stock)


def test_logits_after_a_step_of_the_optimizer_are_refused() -> None:
    ours = both(on_compute="ignore").ours
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    logits = ours(inputs())
    before = ours(inputs()).compute()
    F.cross_entropy(logits.flatten(0, 1), TARGET).backward()
    optimizer.step()
    for use in (lambda: logits.softmax(-1).sum(0), lambda: logits.argmax(-1), logits.compute):
        with pytest.raises(RuntimeError, match=r"must be used before .* change, .*use them before optimizer.step"):
            use()
    assert torch.equal(before.softmax(-1).argmax(-1), before.argmax(-1)), "what was computed stays"


def test_metrics_without_gradients_leave_the_graph_of_the_logits_whole() -> None:
    models = both(on_compute="ignore")
    gradients = []
    for model in (models.stock, models.ours):
        logits = model(inputs())
        with torch.no_grad():
            entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
            confident = logits.max(-1).values
        assert not entropy.requires_grad and not confident.requires_grad
        (logits.max(-1).values.sum() + F.cross_entropy(logits.flatten(0, 1), TARGET)).backward()
        gradients.append(model.trunk.weight.grad)
    assert (gradients[0] - gradients[1]).norm() <= 1e-5 * gradients[0].norm()


def test_detached_logits_give_no_gradient() -> None:
    models = both()
    for use in (
        lambda z: z.detach().logsumexp(-1),
        lambda z: z.detach().log_softmax(-1).gather(-1, z.argmax(-1)[..., None]),
    ):
        expected, ours = models.results(use)
        assert not ours.requires_grad and (ours - expected).abs().max() <= 1e-4


class _SquaredSoftmax(torch.autograd.Function):
    """A loss with a backward of its own, as a user may have one."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Tensor:
        probabilities: Tensor = logits.float().softmax(-1)
        ctx.save_for_backward(probabilities)
        return probabilities.square().sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (probabilities,) = ctx.saved_tensors
        gradient = 2.0 * probabilities * upstream[0]
        return probabilities * (gradient - (gradient * probabilities).sum(-1, keepdim=True))


def test_a_function_of_autograd_that_would_lose_the_gradient_says_so() -> None:
    models = both(on_compute="ignore")
    logits = models.ours(inputs())
    with pytest.raises(RuntimeError, match=r"_SquaredSoftmax, a torch.autograd.Function, .* call it with logits.com"):
        _SquaredSoftmax.apply(logits)
    with pytest.raises(RuntimeError, match=r"_SquaredSoftmax, a torch\.autograd\.Function"):
        _SquaredSoftmax.apply(logits.view(-1, VOCABULARY))
    assert not _SquaredSoftmax.apply(logits.detach()).requires_grad
    for given in (logits.compute(), models.stock(inputs())):
        _SquaredSoftmax.apply(given).backward()
    for name, parameter in models.stock.named_parameters():
        assert torch.equal(models.ours.get_parameter(name).grad, parameter.grad), name


def test_copies_and_pickles_are_tensors() -> None:
    stock, ours = both(on_compute="ignore").results(lambda z: z)
    assert torch.equal(pickle.loads(pickle.dumps(ours)), stock)
    with torch.no_grad():
        _, frozen = both(on_compute="ignore", evaluation=True).results(lambda z: z)
    assert torch.equal(copy.deepcopy(frozen), stock)


def test_operators_of_python_are_those_of_tensors() -> None:
    uses: list[Use] = [
        lambda z: z - 1,
        lambda z: 2 - z,
        lambda z: z**2,
        lambda z: abs(z),
        lambda z: z // 2,
        lambda z: z % 3,
        lambda z: z == z,
        lambda z: z >= 1,
        lambda z: ~(z > 0) & (z < 5),
        lambda z: torch.ones(3, LENGTH) @ z,
        lambda z: torch.tensor(bool(z[0, 0].sum() > 0)),
        lambda z: torch.tensor(float(z[0, 0, 0])),
        lambda z: torch.as_tensor(z.detach().numpy()),
    ]
    for use in uses:
        stock, ours = both(on_compute="ignore").results(use)
        assert torch.equal(ours, stock)


def test_nothing_is_kept_after_a_step() -> None:
    models = both(on_compute="ignore")
    logits = models.ours(inputs())
    references = [weakref.ref(item) for item in (logits, logits.call, logits.form)]
    F.cross_entropy(logits[:, 1:].flatten(0, 1), TARGET[: BATCH * (LENGTH - 1)]).backward()
    del logits
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [True, False])
def test_a_compiled_loss_of_a_compiled_model(is_full: bool, compile_afresh: None) -> None:
    def step(model: Any, batch: Tensor) -> Tensor:
        logits = model(batch)
        scores = (logits[:, :-1] / 0.7).log_softmax(-1).gather(-1, TARGET.view(BATCH, LENGTH)[:, 1:, None])
        return F.cross_entropy(logits.flatten(0, 1), TARGET) - scores.mean()

    models = both()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True) if is_full else step
    called: Any = models.ours if is_full else torch.compile(models.ours, backend="aot_eager", fullgraph=True)
    results = [step(models.stock, inputs()), compiled(called, inputs())]
    for result in results:
        result.backward()
    assert abs(results[0].item() - results[1].item()) <= 1e-5
    for theirs, ours in zip(models.stock.parameters(), models.ours.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 1e-5 * theirs.grad.norm()


@pytest.mark.slow
def test_a_change_in_place_in_a_graph_says_what_to_write(compile_afresh: None) -> None:
    models = both(on_compute="ignore")

    def loss(batch: Tensor) -> Tensor:
        logits = models.ours(batch)
        view = logits[:, 1:]
        logits.div_(2.0)
        return view.logsumexp(-1).sum()

    with pytest.raises(Exception, match=r"write the result to another name, as in logits = logits / temperature"):
        torch.compile(loss, backend="aot_eager", fullgraph=True)(inputs())


def test_what_ran_is_counted() -> None:
    ours = both(on_compute="ignore").ours
    logits = ours(inputs())
    F.cross_entropy(logits.flatten(0, 1), TARGET)
    logits.argmax(-1)
    logits.sort(-1)
    calls = fused_calls(ours)
    assert calls.fused == {"cross_entropy": 1, "argmax": 1}
    ((place, times),) = calls.computed.items()
    assert (place.function, place.file, times) == ("sort", __file__, 1)
