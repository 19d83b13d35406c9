# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The custom operators: PyTorch's own checks of a registration, derivatives, shapes without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nkilib import simulator
from nkilib.torch import cross_entropy
from nkilib.torch.dispatch.register import OPERATORS
from nkilib.torch.functions.cross_entropy.operators import ForwardResults, ShardStatistics
from tests.torch.inputs import CLASSES, DTYPES, POSITIONS, make_logits, make_probabilities, make_targets, make_weight
from tests.torch.stand_in import stand_in_for

ops = torch.ops.nkilib

OPTIONS: list[dict[str, Any]] = [
    {},
    {"ignore_index": 3, "label_smoothing": 0.1, "logit_softcap": 5.0, "lse_square_scale": 0.1, "temperature": 1.5},
]
EVERY_RESULT = {"with_logprob": True, "with_argmax": True, "with_entropy": True}


def _targets(kind: str) -> Tensor:
    return make_targets(POSITIONS, ignored=3) if kind == "indices" else make_probabilities(POSITIONS, CLASSES)


def _backward_arguments(logits: Tensor, kind: str) -> tuple[Any, ...]:
    upstream = make_logits(3, POSITIONS, seed=5)
    grad_logprob = upstream[2] if kind == "indices" else None
    maximum = logits.float().max(1).values
    log_sum = (logits.float() - maximum[:, None]).logsumexp(1)
    of_results = (upstream[0], upstream[1], grad_logprob)
    of_entropy = (make_logits(POSITIONS, seed=6).abs(), make_logits(POSITIONS, seed=7))
    return (logits, _targets(kind), maximum, log_sum, *of_results, make_weight(), None, *of_entropy)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["indices", "probabilities"])
@pytest.mark.parametrize("dtype", DTYPES[:2])  # on which graph and schema do not depend
def test_opcheck_of_every_operator(dtype: torch.dtype, kind: str, options: dict[str, Any]) -> None:
    logits = make_logits(POSITIONS, CLASSES, dtype=dtype)
    soft = kind == "probabilities"  # only there do target and weight have gradients
    target, weight = (value.requires_grad_(soft) for value in (_targets(kind), make_weight()))
    forward_arguments = (logits.clone().requires_grad_(), target, weight)
    for wanted in ({}, EVERY_RESULT):
        torch.library.opcheck(ops.cross_entropy_forward.default, forward_arguments, {**options, **wanted})
    torch.library.opcheck(ops.cross_entropy_backward.default, _backward_arguments(logits, kind), options)
    torch.library.opcheck(ops.cross_entropy_backward_.default, _backward_arguments(logits.clone(), kind), options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["indices", "probabilities"])
def test_gradcheck_of_the_differentiable_results(kind: str, options: dict[str, Any]) -> None:
    """A step of 2^-6 in float32: the difference of two losses keeps 2^-17 of them, and the curvature costs 2^-12."""
    logits = make_logits(3, 5, spread=1.0).requires_grad_()
    target = make_targets(3, classes=5) if kind == "indices" else make_probabilities(3, 5)
    names = ("loss", "lse", "logprob", "entropy") if kind == "indices" else ("loss", "lse", "entropy")

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        results = ForwardResults(*ops.cross_entropy_forward(x, target, make_weight(5), **options, **EVERY_RESULT))
        return tuple(getattr(results, name) for name in names)

    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(forward, (logits,), eps=2.0**-6, atol=2e-3, rtol=2e-3)


def test_results_that_are_constants_for_autograd() -> None:
    logits = make_logits(POSITIONS, CLASSES).requires_grad_()
    results = ops.cross_entropy_forward(logits, make_targets(POSITIONS), None, **EVERY_RESULT)
    differentiable = {name for name, result in ForwardResults(*results)._asdict().items() if result.requires_grad}
    assert differentiable == {"loss", "lse", "logprob", "entropy"}


def test_what_is_not_asked_for_is_empty() -> None:
    results = ops.cross_entropy_forward(make_logits(POSITIONS, CLASSES), make_targets(POSITIONS))
    shapes = {name: tuple(result.shape) for name, result in ForwardResults(*results)._asdict().items()}
    assert (shapes["logprob"], shapes["argmax"], shapes["entropy"]) == ((0,),) * 3
    assert set(shapes.values()) == {(0,), (POSITIONS,)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_inplace_gives_the_bits_of_the_gradient(dtype: torch.dtype) -> None:
    logits = make_logits(POSITIONS, CLASSES, dtype=dtype)
    gradient = ops.cross_entropy_backward(*_backward_arguments(logits, "indices"), **OPTIONS[1])
    version = logits._version
    ops.cross_entropy_backward_(*_backward_arguments(logits, "indices"), **OPTIONS[1])
    assert torch.equal(gradient, logits)
    assert logits._version > version, "the operator declares that it writes"


def test_inplace_writes_where_tensors_have_no_memory() -> None:
    """torch.func.functionalize treats tensors as XLA does: nothing may be written in place."""
    logits = make_logits(POSITIONS, CLASSES)

    def overwrite(x: Tensor) -> Tensor:
        x = x.clone()
        ops.cross_entropy_backward_(*_backward_arguments(x, "indices"))
        return x

    assert torch.equal(torch.func.functionalize(overwrite)(logits), overwrite(logits))


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_and_results_are_not_copied(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gets the memory of [batch, sequence, V] logits, and autograd the memory of its gradient."""
    kernels = [
        stand_in_for(monkeypatch, name, lambda kernel, cores, keywords: kernel[cores](**keywords))
        for name in ("cross_entropy_forward", "cross_entropy_backward")
    ]
    logits = make_logits(2, 3, CLASSES, dtype=dtype).requires_grad_()
    loss = cross_entropy(logits, make_targets(2, 3), class_dim=-1)
    (gradient,) = torch.autograd.grad(loss, logits)
    ((_, forward, _),), ((_, backward, result),) = (kernel.launches for kernel in kernels)
    assert forward["logits_hbm"].data_ptr() == backward["logits_hbm"].data_ptr() == logits.data_ptr()
    assert result.data_ptr() == gradient.data_ptr()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_logits_and_probabilities_are_read_once_in_each_direction(soft: bool, inplace: bool) -> None:
    positions, classes = 32, 500
    x = make_logits(positions, classes).requires_grad_()
    target = make_probabilities(positions, classes) if soft else make_targets(positions, classes=classes)
    options: dict[str, Any] = {"label_smoothing": 0.1, "logit_softcap": 5.0, "lse_square_scale": 0.1}
    once = x.nbytes + (target.nbytes if soft else 0)
    with simulator.recording() as record:
        loss = cross_entropy(1.0 * x, target, inplace=inplace, **options)
        forward = record.hbm_read_bytes
        loss.backward()
    # Beside them vectors of a number for each position, a dozen at most.
    for read in (forward, record.hbm_read_bytes - forward):
        assert once <= read <= once + 12 * 4 * positions


def test_a_second_derivative_says_what_to_use() -> None:
    logits = make_logits(POSITIONS, CLASSES).requires_grad_()
    loss = ops.cross_entropy_forward(logits, make_targets(POSITIONS))[0].sum()
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"use torch\.nn\.functional\.cross_entropy"):
        gradient.square().sum().backward()


def test_shapes_and_types_of_fake_tensors_are_those_of_real_ones() -> None:
    for dtype in DTYPES:
        logits = make_logits(POSITIONS, CLASSES, dtype=dtype)
        for options in ({}, *({name: True} for name in EVERY_RESULT)):
            real = ops.cross_entropy_forward(logits, make_targets(POSITIONS), **options)
            with FakeTensorMode() as mode:
                fake = ops.cross_entropy_forward(
                    mode.from_tensor(logits), mode.from_tensor(make_targets(POSITIONS)), **options
                )
            assert [(r.shape, r.dtype, r.device) for r in real] == [(f.shape, f.dtype, f.device) for f in fake]


def test_inplace_refuses_logits_that_are_not_contiguous() -> None:
    logits = make_logits(CLASSES, POSITIONS).t()
    with pytest.raises(ValueError, match=r"logits must be contiguous, got strides \(1, 6\)"):
        ops.cross_entropy_backward_(*_backward_arguments(logits, "indices"))


def test_the_names_of_the_results_are_those_of_the_descriptions() -> None:
    for name, results in (("forward", ForwardResults), ("shard_statistics", ShardStatistics)):
        assert results._fields == tuple(output.name for output in OPERATORS[f"cross_entropy_{name}"].outputs)


OPTIONS_OF_LOSS = ("int ignore_index=-100", "float label_smoothing=0.", "float? logit_softcap=None")
SQUARE, COLUMNS = "float lse_square_scale=0.", ("int first_class=0", "int? num_classes=None")
GRADIENTS = (
    *("Tensor target", "Tensor maximum", "Tensor log_sum", "Tensor grad_loss", "Tensor? grad_lse=None"),
    *("Tensor? grad_logprob=None", "Tensor? class_weight=None", "Tensor? target_weight=None"),
    *("Tensor? entropy=None", "Tensor? grad_entropy=None", "Tensor? temperatures=None"),
)
FORWARD = ("Tensor logits", "Tensor target", "Tensor? class_weight=None", "Tensor? temperatures=None")
ASKED = ("bool with_argmax=False", "bool with_entropy=False")
BACKWARD = (*OPTIONS_OF_LOSS, SQUARE, *COLUMNS, "float? weight_sum=None")
SCHEMAS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "forward": (FORWARD, (*OPTIONS_OF_LOSS, SQUARE, "bool with_logprob=False", *ASKED), 8),
    "shard_statistics": (FORWARD, (*OPTIONS_OF_LOSS, *COLUMNS, "bool with_distance_sum=False", *ASKED), 7),
    "backward": (("Tensor logits", *GRADIENTS), BACKWARD, 1),
    "backward_": (("Tensor(a!) logits", *GRADIENTS), BACKWARD, 0),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_public(name: str) -> None:
    """Saved graphs name them: further options may follow, with defaults, and nothing else may change."""
    schema = str(getattr(ops, f"cross_entropy_{name}").default._schema)
    inputs, returned = schema.removeprefix(f"nkilib::cross_entropy_{name}(").split(") -> ")
    positional, options, results = SCHEMAS[name]
    before, after = (part.split(", ") for part in inputs.split(", *, "))
    assert tuple(before) == positional
    assert [item for item in after if item in options] == list(options)
    assert all("=" in item for item in after)
    assert returned.count("Tensor") == results
