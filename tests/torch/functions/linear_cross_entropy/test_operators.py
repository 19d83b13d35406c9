# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The custom operators: PyTorch's own checks of a registration, derivatives, schemas, shapes without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nkilib.torch.dispatch.register import OPERATORS
from nkilib.torch.functions.cross_entropy.operators import ForwardResults
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, DTYPES, FEATURES, POSITIONS, make_problem
from tests.torch.inputs import make_logits, make_weight

ops = torch.ops.nkilib

OPTIONS: list[dict[str, Any]] = [
    {},
    {"ignore_index": 3, "label_smoothing": 0.1, "logit_softcap": 5.0, "lse_square_scale": 0.1},
]
EVERY_RESULT = {"with_logprob": True, "with_argmax": True, "with_entropy": True}


def _operands(dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> tuple[Any, ...]:
    problem = make_problem(POSITIONS, dtype=dtype, ignored=3)
    x, w = (tensor.requires_grad_(requires_grad) for tensor in (problem.input, problem.linear_weight))
    return x, w, problem.target


def _bias(requires_grad: bool = False) -> Tensor:
    return make_logits(CLASSES, seed=2, spread=1.0).requires_grad_(requires_grad)


def _backward_arguments(dtype: torch.dtype) -> tuple[Any, ...]:
    operands = _operands(dtype)
    results = ForwardResults(*ops.linear_cross_entropy_forward(*operands, _bias(), make_weight()))
    upstream = make_logits(3, POSITIONS, seed=5)
    return (*operands, results.maximum, results.log_sum, *upstream, _bias(), make_weight())


@pytest.mark.parametrize(("dtype", "options"), [(torch.float32, OPTIONS[0]), (torch.bfloat16, OPTIONS[1])])
def test_opcheck_of_both_directions(dtype: torch.dtype, options: dict[str, Any]) -> None:
    operands = (*_operands(dtype, requires_grad=True), _bias(requires_grad=True), make_weight())
    torch.library.opcheck(ops.linear_cross_entropy_forward.default, operands, {**options, **EVERY_RESULT})
    arguments = _backward_arguments(dtype)
    wanted = {"grad_input_wanted": False}
    torch.library.opcheck(ops.linear_cross_entropy_backward.default, arguments, {**options, **wanted})
    adding = (*arguments, torch.zeros(CLASSES, FEATURES))
    torch.library.opcheck(ops.linear_cross_entropy_backward_adding.default, adding, options)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradcheck_of_the_differentiable_results(options: dict[str, Any]) -> None:
    """A step of 2^-6 in float32: the difference of two losses keeps 2^-17 of them, and the curvature costs 2^-12."""
    problem = make_problem(3, features=16, classes=5, bias=True)
    leaves = tuple(leaf.detach().requires_grad_() for leaf in problem.leaves().values())

    def forward(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        results = ops.linear_cross_entropy_forward(
            x, w, problem.target, bias, make_weight(5), **options, with_logprob=True, with_entropy=True
        )
        named = ForwardResults(*results)
        return named.loss, named.lse, named.logprob, named.entropy

    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(forward, leaves, eps=2.0**-6, atol=4e-3, rtol=4e-3, fast_mode=True)


def test_results_that_are_constants_for_autograd() -> None:
    results = ops.linear_cross_entropy_forward(*_operands(requires_grad=True), **EVERY_RESULT)
    differentiable = {name for name, result in ForwardResults(*results)._asdict().items() if result.requires_grad}
    assert differentiable == {"loss", "lse", "logprob", "entropy"}


def test_what_is_not_asked_for_is_empty() -> None:
    results = ForwardResults(*ops.linear_cross_entropy_forward(*_operands()))
    shapes = {name: tuple(result.shape) for name, result in results._asdict().items()}
    assert (shapes["logprob"], shapes["argmax"], shapes["entropy"]) == ((0,),) * 3
    assert set(shapes.values()) == {(0,), (POSITIONS,)}
    arguments = _backward_arguments(torch.float32)
    x, w, bias = ops.linear_cross_entropy_backward(*arguments, grad_input_wanted=False)
    assert [tuple(array.shape) for array in (x, w, bias)] == [(0,), (CLASSES, FEATURES), (CLASSES,)]


def test_shapes_and_types_of_fake_tensors_are_those_of_real_ones() -> None:
    for dtype in DTYPES:
        real = ops.linear_cross_entropy_backward(*_backward_arguments(dtype))
        with FakeTensorMode() as mode:
            arguments = [mode.from_tensor(argument) for argument in _backward_arguments(dtype)]
            fake = ops.linear_cross_entropy_backward(*arguments)
        assert [(r.shape, r.dtype, r.stride()) for r in real] == [(f.shape, f.dtype, f.stride()) for f in fake]


def test_the_names_of_the_results_are_those_of_the_descriptions() -> None:
    outputs = OPERATORS["linear_cross_entropy_forward"].outputs
    assert ForwardResults._fields == tuple(output.name for output in outputs)


def test_operands_of_another_type_or_shape_are_refused() -> None:
    x, w, target = _operands()
    with pytest.raises(
        TypeError, match="linear_cross_entropy_forward: input must be 2-D, bfloat16 or float32 or float16"
    ):
        ops.linear_cross_entropy_forward(x.double(), w, target)
    with pytest.raises(TypeError, match="linear_cross_entropy_forward: linear_weight must be 2-D"):
        ops.linear_cross_entropy_forward(x, w[None], target)


OPTIONS_OF_LOSS = (
    *("int ignore_index=-100", "float label_smoothing=0.", "float? logit_softcap=None"),
    "float lse_square_scale=0.",
)
OPERANDS = ("Tensor input", "Tensor linear_weight", "Tensor target")
OPTIONAL = ("Tensor? linear_bias=None", "Tensor? class_weight=None")
GIVEN = ("Tensor maximum", "Tensor log_sum", "Tensor grad_loss")
UPSTREAM = ("Tensor? grad_lse=None", "Tensor? grad_logprob=None", *OPTIONAL)
REQUIRED = ("Tensor? grad_lse", "Tensor? grad_logprob", "Tensor? linear_bias", "Tensor? class_weight")
# Which came later, at the end.
TEMPERATURES = "Tensor? temperatures=None"
AT_END = ("Tensor? entropy=None", "Tensor? grad_entropy=None", TEMPERATURES)
WANTED = tuple(f"bool grad_{name}_wanted=True" for name in ("input", "weight", "bias"))
ASKED = ("bool with_logprob=False", "bool with_argmax=False", "bool with_entropy=False")
SCHEMAS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "forward": ((*OPERANDS, *OPTIONAL, "Tensor? grad_weight_sum=None", TEMPERATURES), (*OPTIONS_OF_LOSS, *ASKED), 8),
    "backward": ((*OPERANDS, *GIVEN, *UPSTREAM, *AT_END), (*OPTIONS_OF_LOSS, *WANTED), 3),
    "backward_adding": (
        (*OPERANDS, *GIVEN, *REQUIRED, "Tensor(a!) grad_weight_sum", *AT_END),
        (*OPTIONS_OF_LOSS, WANTED[0], WANTED[2]),
        2,
    ),
    "with_gradients": (
        (*OPERANDS, "Tensor grad_scale", *OPTIONAL, TEMPERATURES),
        ("int scratch_bytes=536870912", *OPTIONS_OF_LOSS, *WANTED),
        4,
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_public(name: str) -> None:
    """Saved graphs name them: further options may follow, with defaults, and nothing else may change."""
    schema = str(getattr(ops, f"linear_cross_entropy_{name}").default._schema)
    inputs, returned = schema.removeprefix(f"nkilib::linear_cross_entropy_{name}(").split(") -> ")
    positional, options, results = SCHEMAS[name]
    before, after = (part.split(", ") for part in inputs.split(", *, "))
    assert tuple(before) == positional
    assert [item for item in after if item in options] == list(options)
    assert returned.count("Tensor") == results
