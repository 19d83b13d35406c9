# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bad input of ``linear_distillation_loss``: who, what is required, what came, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch import LinearDistillationLoss, linear_distillation_loss
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS
from tests.torch.functions.linear_distillation.problem import make_distillation
from tests.torch.placements import distribute, from_local, partial, replicate, shard

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

PROBLEM = make_distillation(POSITIONS, bias=True, weighted=True)
GIVEN: dict[str, Tensor] = {**PROBLEM.leaves_of, **PROBLEM.constants, "labels": PROBLEM.labels}
X, W, TX, TW = (GIVEN[name] for name in ("input", "linear_weight", "teacher_input", "teacher_weight"))

REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "direction": (ValueError, "is not a valid value for direction; pass 'forward'", {"direction": "backward"}),
    "reduction": (ValueError, "one of mean, sum, none, batchmean", {"reduction": "avg"}),
    "beta": (ValueError, "beta must be from 0 to 1, got -0.1", {"beta": -0.1}),
    "beta, a tensor": (TypeError, "'beta' must be float, not Tensor", {"beta": torch.tensor([0.5])}),
    "temperature": (ValueError, "temperature must be from 0.001 to", {"temperature": 0.0}),
    "temperature, a string": (TypeError, "'temperature' must be float", {"temperature": "1"}),
    "squared": (TypeError, "'temperature_squared' must be bool", {"temperature_squared": 1}),
    "ignore_index": (ValueError, "ignore_index must be an int32", {"ignore_index": 2**31}),
    "scale": (ValueError, "logit_scale must be a number from", {"logit_scale": 0.0}),
    "teacher's scale": (ValueError, "teacher_logit_scale must be a number from", {"teacher_logit_scale": 1e7}),
    "units": (
        ValueError,
        "logit_softcap 1e-10, and teacher_logit_softcap 1000.0, may be 1e.12 times apart at most",
        {"logit_softcap": 1e-10, "teacher_logit_softcap": 1e3},
    ),
    "cap": (ValueError, "logit_softcap must be a number from .* or None, got 0.0", {"logit_softcap": 0.0}),
    "teacher's cap": (TypeError, "'teacher_logit_softcap' must be float", {"teacher_logit_softcap": "3"}),
    "outputs": (ValueError, "outputs must be among entropy, logprob, got 'lse'", {"outputs": ["lse"]}),
    "outputs, a string": (TypeError, r"iterable of names, .* pass \('entropy',\)", {"outputs": "entropy"}),
    "no labels": (
        ValueError,
        "labels must be given for the output 'logprob'",
        {"outputs": ["logprob"], "labels": None},
    ),
    "a label": (
        IndexError,
        r"Target \d+ is out of bounds",
        {"outputs": ["logprob"], "labels": PROBLEM.labels + CLASSES},
    ),
    "labels": (TypeError, "labels must be integers", {"labels": PROBLEM.labels.float()}),
    "few labels": (ValueError, r"labels must have the shape of the positions, \(6,\)", {"labels": PROBLEM.labels[:3]}),
    "weights": (ValueError, "row_weight must have the shape of the positions", {"row_weight": torch.ones(1)}),
    "integer weights": (TypeError, "row_weight must be floating", {"row_weight": torch.ones(6, dtype=torch.int32)}),
    "a weight's gradient": (
        RuntimeError,
        "with respect to argument 'row_weight'.* pass row_weight.detach",
        {"row_weight": torch.ones(6, requires_grad=True)},
    ),
    "a teacher's gradient": (
        RuntimeError,
        "with respect to argument 'teacher_input'.* pass teacher_input.detach",
        {"teacher_input": TX.clone().requires_grad_()},
    ),
    "its weight's": (RuntimeError, "argument 'teacher_weight'", {"teacher_weight": TW.clone().requires_grad_()}),
    "its bias's": (RuntimeError, "argument 'teacher_bias'", {"teacher_bias": torch.zeros(11, requires_grad=True)}),
    "no tensor": (TypeError, "'teacher_weight' must be Tensor, not NoneType", {"teacher_weight": None}),
    "float64": (TypeError, r"pass teacher_input.float\(\)", {"teacher_input": TX.double()}),
    "integers": (TypeError, "the kernels take linear_weight in", {"linear_weight": W.int()}),
    "features": (ValueError, "input and linear_weight must have equal last dimensions", {"linear_weight": W[:, 1:]}),
    "teacher's features": (ValueError, "teacher_input and teacher_weight must have", {"teacher_input": TX[:, 1:]}),
    "a bias": (ValueError, "teacher_bias must be one number for each of the 11 classes", {"teacher_bias": TX[0]}),
    "no features": (ValueError, "input must have the features", {"input": X[0, 0], "teacher_input": TX[0]}),
    "a weight of one dimension": (ValueError, "linear_weight must be .classes, features.", {"linear_weight": W[0]}),
    "positions": (ValueError, r"teacher_input must have the positions of input, \(6,\)", {"teacher_input": TX[:3]}),
    "classes": (
        ValueError,
        "teacher_weight must have the classes of linear_weight, 11 here, got 10; slice both",
        {"teacher_weight": TW[:10], "teacher_bias": None},
    ),
    "few features": (
        NotImplementedError,
        "teacher_weight must have 16 to 16384 features, got 8; pass the logits .* to nkilib.torch.distillation_loss",
        {"teacher_weight": TW[:, :8], "teacher_input": TX[:, :8]},
    ),
    "many features": (
        NotImplementedError,
        "at most 65536 bytes of both models together .* got 40960 of input and 40960 of teacher_input; pass",
        {
            name: torch.zeros(len(GIVEN[name]), 10240)
            for name in ("input", "linear_weight", "teacher_input", "teacher_weight")
        },
    ),
    "no type": (TypeError, "'compute_dtype' must be torch.dtype, not str", {"compute_dtype": "bf16"}),
    "a type without products": (ValueError, "compute_dtype must be torch.bfloat16", {"compute_dtype": torch.float64}),
    "a sum": (ValueError, "grad_weight_sum must be float32", {"grad_weight_sum": W.half()}),
    "memory": (ValueError, "memory_limit must be a number of bytes", {"memory_limit": -1}),
    "memory, a float": (TypeError, "'memory_limit' must be int", {"memory_limit": 1e9}),
    "no group": (RuntimeError, "torch.distributed must be initialized", {"group": "tp"}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_refuses(case: str) -> None:
    error, message, changes = REFUSED[case]
    with pytest.raises(error, match=f"^linear_distillation_loss: .*{message}") as raised:
        linear_distillation_loss(**{**GIVEN, **changes})
    assert raised.type is error


def test_the_module_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"^linear_distillation_loss: argument 'outputs' must be an iterable"):
        LinearDistillationLoss(outputs="entropy")(X, W, TX, TW)


def test_a_derivative_in_forward_mode() -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, X)
        with pytest.raises(NotImplementedError, match="input has a tangent"):
            linear_distillation_loss(dual, W, TX, TW)


PLACED: dict[str, tuple[Callable[[], dict[str, Placement]], dict[str, Any], str]] = {
    "input alone": (lambda: {"input": replicate()}, {}, r"input, a DTensor .* needs a linear_weight that is a DTensor"),
    "positions": (
        lambda: {"input": shard(0), "linear_weight": shard(0)},
        {},
        r"input, a DTensor, must have the placements Replicate\(\), got .*redistribute",
    ),
    "features": (
        lambda: {"input": replicate(), "linear_weight": shard(1)},
        {},
        r"linear_weight, .* must have the placements Shard\(0\), on a mesh",
    ),
    "a sum": (
        lambda: {"linear_weight": shard(0)},
        {"grad_weight_sum": torch.zeros(CLASSES, FEATURES)},
        "grad_weight_sum is not supported for a linear_weight, a DTensor, that is gathered",
    ),
    "a teacher's positions": (lambda: {"teacher_input": shard(0)}, {}, "teacher_input must be plain where input is"),
    "labels": (lambda: {"labels": replicate()}, {}, "labels must be plain where input is"),
    "positions of a teacher in parts": (
        lambda: {
            "input": replicate(),
            "linear_weight": shard(0),
            "teacher_weight": shard(0),
            "teacher_input": shard(0),
        },
        {},
        r"teacher_input, a DTensor, must have the placements Replicate\(\)",
    ),
    "summands": (
        lambda: {"teacher_weight": partial()},
        {},
        r"teacher_weight, .* must have the placements Shard\(0\) or",
    ),
}


@pytest.mark.parametrize("case", PLACED)
def test_placements_without_a_rule(case: str) -> None:
    placements, further, message = PLACED[case]
    with two_ranks():
        mesh = init_device_mesh("cpu", (2,))
        arguments: dict[str, Any] = {"input": X, "linear_weight": W, "teacher_input": TX, "teacher_weight": TW}
        for name, placement in placements().items():
            placed = from_local if placement.is_partial() else distribute
            arguments[name] = placed(GIVEN[name], mesh, [placement])
        with pytest.raises(NotImplementedError, match=f"^linear_distillation_loss: {message}"):
            linear_distillation_loss(**arguments, **further)


def test_a_dtensor_has_its_own_group() -> None:
    with two_ranks():
        w = distribute(W, init_device_mesh("cpu", (2,)), [shard(0)])
        with pytest.raises(ValueError, match="group and shard_sizes are for plain tensors, got a DTensor"):
            linear_distillation_loss(X, w, TX, TW, None, dist.group.WORLD)


def test_a_teacher_of_other_classes_is_refused_where_ranks_have_parts() -> None:
    with two_ranks():
        mesh = init_device_mesh("cpu", (2,))
        x, w = distribute(X, mesh, [replicate()]), distribute(W, mesh, [shard(0)])
        message = r"^linear_distillation_loss: teacher_weight.* must have the .*classes"
        for teacher in (TW, distribute(TW[:8], mesh, [shard(0)])):
            with pytest.raises(ValueError, match=message):
                linear_distillation_loss(x, w, TX, teacher)
