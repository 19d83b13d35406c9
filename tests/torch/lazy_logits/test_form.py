# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions of torch that give lazy logits again: their shapes, and what they are made of, beside the same functions of
logits; and those that do not.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch.lazy_logits.form import Form, Kind
from nkilib.torch.lazy_logits.logits import LazyLogits
from nkilib.torch.lazy_logits.transformations import RECORDED
from tests.torch.lazy_logits.models import BATCH, LENGTH, VOCABULARY, Use, both
from tests.torch.telling import UNIT

MASK = torch.tensor([[True, False, True, True, False], [False, True, False, True, True]])
ROWS = torch.tensor([1, 0, 1])
# Logits are below 40; products, scales, caps and exponentials are rounded some times each.
BUDGET = 64 * UNIT * 40

POSITIONS: dict[str, Use] = {
    "view": lambda z: z.view(-1, VOCABULARY),
    "view of a size": lambda z: z.view(torch.Size([BATCH * LENGTH, VOCABULARY])),
    "view, the last inferred": lambda z: z.view(BATCH * LENGTH, -1),
    "reshape": lambda z: torch.reshape(z, (LENGTH, BATCH, VOCABULARY)),
    "flatten": lambda z: z.flatten(0, 1),
    "flatten of torch": lambda z: torch.flatten(z, end_dim=-2),
    "unflatten": lambda z: z.unflatten(1, (1, LENGTH)),
    "unsqueeze in front": lambda z: z.unsqueeze(0),
    "unsqueeze behind": lambda z: z.unsqueeze(-1),
    "squeeze": lambda z: z[:1].squeeze(0),
    "squeeze of another size": lambda z: z.squeeze(1),
    "transpose": lambda z: z.transpose(1, 2),
    "transpose of positions": lambda z: z.transpose(0, 1),
    "permute": lambda z: z.permute(2, 0, 1),
    "permute of a tuple": lambda z: torch.permute(z, (0, 2, 1)),
    "movedim": lambda z: z.movedim(-1, 0),
    "contiguous": lambda z: z[:, :-1].contiguous(),
    "clone": lambda z: z.clone(),
    "detach": lambda z: z.detach(),
    "select": lambda z: z.select(1, 2),
    "narrow": lambda z: z.narrow(1, 1, 3),
    "narrow of classes": lambda z: z.narrow(-1, 0, 30),
    "index_select": lambda z: z.index_select(0, ROWS),
    "a shift": lambda z: z[:, :-1],
    "a shift by an ellipsis": lambda z: z[..., :-1, :],
    "a row": lambda z: z[1],
    "the last position": lambda z: z[:, -1],
    "the last position of all classes": lambda z: z[:, -1, :],
    "a mask": lambda z: z[MASK],
    "indices": lambda z: z[ROWS],
    "indices of both": lambda z: z[ROWS, torch.tensor([0, 4, 2])],
    "indices apart": lambda z: z[None][:, ROWS, :, :],
    "a new dimension": lambda z: z[:, None],
    "a new dimension before the classes": lambda z: z[..., None, :],
    "fewer classes": lambda z: z[..., :30],
    "fewer classes of all": lambda z: z[:, 1:, :-4],
    "only an ellipsis": lambda z: z[...],
    "joined": lambda z: torch.cat([z[:, :2], z[:, 3:]], dim=1),
    "stacked": lambda z: torch.stack([z, z], dim=1),
    "stacked behind": lambda z: torch.stack([z, z], dim=-1),
}
VALUES: dict[str, Use] = {
    "scaled": lambda z: z * 0.25,
    "scaled from the left": lambda z: 0.25 * z,
    "divided": lambda z: z / 3,
    "divided by torch": lambda z: torch.div(z, 3),
    "capped": lambda z: 5.0 * torch.tanh(z / 5.0),
    "capped and scaled": lambda z: (2 * z / 3.0).tanh() * 3.0 / 0.7,
    "tanh": lambda z: z.tanh(),
    "float": lambda z: z.float(),
    "to a dtype": lambda z: z.to(torch.float32),
    "to a device": lambda z: z.to("cpu", non_blocking=True),
    "to another tensor": lambda z: z.type_as(torch.zeros(1)),
    "a sum": lambda z: z + z * 0.5,
    "log_softmax": lambda z: z.log_softmax(-1),
    "log_softmax of F": lambda z: F.log_softmax(z, dim=2, dtype=torch.float32),
    "log_softmax of other places": lambda z: z.transpose(1, 2).log_softmax(1),
    "a negative log_softmax": lambda z: -F.log_softmax(z, dim=-1),
    "half a log_softmax": lambda z: z.log_softmax(-1) / 2,
    "softmax": lambda z: z.softmax(-1),
    "an exponential": lambda z: z.log_softmax(-1).exp(),
    "p log p": lambda z: z.softmax(-1) * z.log_softmax(-1),
    "p z": lambda z: torch.mul(z, z.softmax(-1)),
}


def dense(form: Form) -> Tensor:
    """The tensor that a form stands for, computed from what it says alone."""
    parts = []
    for term in form.terms:
        hidden = term.hidden.movedim(form.class_dim, -1)
        parts.append(term.factor * F.linear(hidden, term.layer.weight, term.layer.bias))
    scaled = form.scale * sum(parts)
    logits = scaled if form.cap is None else form.cap * torch.tanh(scaled / form.cap)
    logits = logits[..., : form.classes]
    if form.temperatures is not None:
        logits = logits / form.spread_temperatures().movedim(form.class_dim, -1)
    by_kind = {
        Kind.LOGITS: lambda: logits,
        Kind.LOG_SOFTMAX: lambda: logits.log_softmax(-1),
        Kind.SOFTMAX: lambda: logits.softmax(-1),
        Kind.P_LOG_P: lambda: logits.softmax(-1) * logits.log_softmax(-1),
        Kind.P_Z: lambda: logits.softmax(-1) * logits,
    }
    return (form.factor * by_kind[form.kind]()).movedim(-1, form.class_dim).to(form.dtype)


@pytest.mark.parametrize("name", [*POSITIONS, *VALUES])
def test_a_function_gives_lazy_logits(name: str) -> None:
    use = {**POSITIONS, **VALUES}[name]
    models = both(bias=True)
    expected, ours = models.results(use)
    assert isinstance(ours, LazyLogits)
    assert (ours.shape, ours.dtype, ours.ndim) == (expected.shape, expected.dtype, expected.dim())
    assert ours.requires_grad == expected.requires_grad
    assert (dense(ours.form) - expected).abs().max() <= BUDGET
    assert torch.equal(ours.compute(), expected), "computed by the functions that were called"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", VALUES)
def test_dtypes_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    expected, ours = both(dtype=dtype).results(VALUES[name])
    assert ours.dtype == expected.dtype and torch.equal(ours.compute(), expected)


def test_casts_name_their_dtype() -> None:
    for cast, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16), ("float", torch.float32)):
        expected, ours = both().results(lambda z, cast=cast: getattr(z, cast)())
        assert ours.dtype == expected.dtype == dtype and torch.equal(ours.compute(), expected)


PARTS: dict[str, Use] = {
    "split": lambda z: z.split(2, dim=1),
    "split by sizes": lambda z: torch.split(z, [1, 4], dim=1),
    "chunk": lambda z: torch.chunk(z, 2, dim=1),
    "tensor_split": lambda z: z.tensor_split(2, dim=1),
    "unbind": lambda z: z.unbind(1),
    "iteration": tuple,
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_positions_are_lazy(name: str) -> None:
    expected, ours = both().results(PARTS[name])
    assert len(ours) == len(expected)
    for part, tensor in zip(ours, expected, strict=True):
        assert isinstance(part, LazyLogits) and part.shape == tensor.shape
        assert (dense(part.form) - tensor).abs().max() <= BUDGET
        assert torch.equal(part.compute(), tensor)


COMPUTED: dict[str, Use] = {
    "positions and classes in one": lambda z: z.view(-1),
    "classes in another size": lambda z: z.reshape(-1, VOCABULARY * LENGTH),
    "flatten of classes": lambda z: z.flatten(1),
    "other classes": lambda z: z[..., 3:],
    "every other class": lambda z: z[..., ::2],
    "a class": lambda z: z[..., 4],
    "classes by index": lambda z: z[..., ROWS],
    "fewer classes of probabilities": lambda z: z.log_softmax(-1)[..., :5],
    "by a tensor": lambda z: z * torch.full((BATCH, LENGTH, 1), 0.5),
    "a negative scale": lambda z: z * -1.0,
    "a scale of 0": lambda z: z * 0,
    "a scale that no kernel takes": lambda z: z * 1e9,
    "a floor": lambda z: torch.div(z, 3, rounding_mode="floor"),
    "capped twice": lambda z: z.tanh().tanh(),
    "a constant": lambda z: z + 1.0,
    "capped sums": lambda z: z.tanh() + z,
    "log_softmax over positions": lambda z: z.log_softmax(1),
    "softmax twice": lambda z: z.softmax(-1).log_softmax(-1),
    "softmax of other logits": lambda z: z.softmax(-1) * (z / 2),
    "a double": lambda z: z.double(),
    "integers": lambda z: z.to(torch.int64),
    "cat of classes": lambda z: torch.cat([z, z], dim=-1),
    "cat with a tensor": lambda z: torch.cat([z, torch.zeros(BATCH, LENGTH, VOCABULARY)]),
    "exp": lambda z: z.exp(),
    "relu": lambda z: F.relu(z),
    "sort": lambda z: z.sort(-1).values,
    "topk": lambda z: z.topk(3, dim=-1).values,
    "amax": lambda z: z.amax(-1),
    "std": lambda z: z.std(),
    "where": lambda z: torch.where(MASK[..., None], z, 0.0),
    "masked_fill": lambda z: z.masked_fill(~MASK[..., None], -1.0),
    "a comparison": lambda z: (z > 0).float(),
    "numpy": lambda z: torch.from_numpy(z.detach().numpy()),
    "matmul": lambda z: torch.ones(VOCABULARY) @ z.transpose(1, 2),
    "subtraction from the left": lambda z: 1.0 - z,
    "einsum": lambda z: torch.einsum("bsv->bs", z),
    "data": lambda z: z.data,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_everything_else_is_what_torch_gives_for_the_logits(name: str) -> None:
    models = both(on_compute="ignore")
    expected, ours = models.results(COMPUTED[name])
    assert isinstance(ours, Tensor) and ours.dtype == expected.dtype
    assert torch.equal(ours, expected)
    if expected.requires_grad:
        for model, result in ((models.stock, expected), (models.ours, ours)):
            result.float().square().sum().backward()
            assert model.head.weight.grad is not None
        assert torch.equal(models.ours.head.weight.grad, models.stock.head.weight.grad)


def test_every_recorded_function_is_one_of_torch() -> None:
    from torch.distributed.tensor import DTensor

    for name in RECORDED:
        assert hasattr(DTensor, name) or hasattr(torch, name), name
