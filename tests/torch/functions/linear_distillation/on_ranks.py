# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillations of output layers in parts, as each of the processes of ``vocab_parallel.ranks_run`` runs them.

``python -m tests.torch.functions.linear_distillation.on_ranks DIRECTORY RANKS`` does it in RANKS processes, for sweeps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import nkilib.simulator
from nkilib.torch import LinearDistillationOutputs, linear_distillation_loss
from tests.hangs import RANKS_WAIT
from tests.torch.functions.linear_distillation.problem import OUTPUTS, DistillationProblem, Kept, make_distillation

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

Results = dict[str, Any]

# As many on each of two or three ranks.
CLASSES: Final = 12
# The last of three ranks has no other.
MASKED: Final = slice(8, 12)
OF_CLASSES: Final = ("linear_weight", "linear_bias", "teacher_weight", "teacher_bias")


def distillation_problems() -> dict[str, DistillationProblem]:
    """Return problems by name; one has classes that both models mask, and one so few that a rank of three has none."""
    options = {"temperature": 0.75, "logit_scale": 0.5, "teacher_logit_softcap": 5.0, "temperature_squared": True}
    problems = {
        "forward": make_distillation(2, 3, classes=CLASSES, ignored=-100, weighted=True, **options),
        "reverse": make_distillation(6, classes=CLASSES, dtype=torch.bfloat16, teacher_dtype=torch.float32, beta=1.0),
        "mixed": make_distillation(6, classes=CLASSES, bias=True, ignored=3, beta=0.3, compute_dtype=torch.bfloat16),
        "masked": make_distillation(6, classes=CLASSES, bias=True, direction="reverse", logit_softcap=4.0),
        "few classes": make_distillation(6, classes=4),
    }
    for bias in (problems["masked"].leaves_of["linear_bias"], problems["masked"].constants["teacher_bias"]):
        bias[MASKED] = -torch.inf
    problems["masked"].labels.clamp_(max=MASKED.start - 1)
    return problems


def _found(problem: DistillationProblem, arguments: dict[str, Any], leaves: Kept) -> Results:
    """Results and gradients of a call, DTensors whole."""
    from torch.distributed.tensor import DTensor

    outputs = linear_distillation_loss(**arguments, **leaves, **problem.options, reduction="none", outputs=OUTPUTS)
    assert isinstance(outputs, LinearDistillationOutputs)
    gradients = problem.gradients(outputs, leaves)
    return {
        "outputs": {name: values.detach() for name, values in outputs._asdict().items()},
        "gradients": {
            name: gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            for name, gradient in gradients.items()
        },
    }


def _constants(problem: DistillationProblem) -> dict[str, Any]:
    return {"labels": problem.labels, **problem.constants}


def run_parts(problem: DistillationProblem, group: dist.ProcessGroup | None) -> Results:
    """Run the loss on plain tensors, of which this rank has its classes."""
    kept = len(problem.leaves_of["linear_weight"]) // dist.get_world_size(group)
    rank = dist.get_rank(group)

    def own(name: str, tensor: Tensor) -> Tensor:
        return tensor[rank * kept : (rank + 1) * kept] if name in OF_CLASSES else tensor

    leaves = {name: own(name, leaf).clone().requires_grad_() for name, leaf in problem.leaves_of.items()}
    inputs = {name: own(name, tensor) for name, tensor in _constants(problem).items()}
    return _found(problem, {**inputs, "group": group or dist.group.WORLD}, leaves)


def run_dtensors(problem: DistillationProblem, group: dist.ProcessGroup | None, of_teacher: Placement) -> Results:
    """Run on replicated hidden states and layers in shards: the student's of classes, the teacher's ``of_teacher``."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
    placements = dict.fromkeys(("linear_weight", "linear_bias", "teacher_bias"), Shard(0))
    placements |= {"input": Replicate(), "teacher_input": Replicate(), "teacher_weight": of_teacher}

    def placed(name: str, tensor: Tensor) -> Tensor:
        return distribute_tensor(tensor, mesh, [placements[name]]) if name in placements else tensor

    leaves = {name: placed(name, leaf.detach()).requires_grad_() for name, leaf in problem.leaves_of.items()}
    return _found(problem, {name: placed(name, tensor) for name, tensor in _constants(problem).items()}, leaves)


def run_gathered(problem: DistillationProblem, group: dist.ProcessGroup | None) -> Results:
    """Run the loss on this rank's own hidden states, and layers that FSDP2 has sharded."""
    from torch.distributed.tensor import DTensor

    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
    own = of_rank(problem, dist.get_rank(group))
    leaves: Kept = {"input": own.leaves_of["input"].requires_grad_()}
    leaves |= _sharded(own.leaves_of, "linear", mesh)
    teacher = {name: value.detach() for name, value in _sharded(own.constants, "teacher", mesh).items()}
    assert all(isinstance(value, DTensor) for name, value in {**leaves, **teacher}.items() if name != "input")
    return _found(problem, {**_constants(own), **teacher}, leaves)


def _sharded(tensors: Kept, model: str, mesh: DeviceMesh) -> Kept:
    """Weight and bias of a layer after ``fully_shard``."""
    from torch.distributed.fsdp import fully_shard

    weight, bias = tensors[f"{model}_weight"], tensors.get(f"{model}_bias")
    layer = nn.Linear(weight.shape[1], len(weight), bias=bias is not None, dtype=weight.dtype)
    layer.load_state_dict({"weight": weight, **({} if bias is None else {"bias": bias})})
    fully_shard(layer, mesh=mesh)
    return {f"{model}_{name}": parameter for name, parameter in layer.named_parameters()}


def of_rank(problem: DistillationProblem, rank: int) -> DistillationProblem:
    """The problem with the hidden states of a rank."""
    leaves = {**problem.leaves_of, "input": problem.leaves_of["input"].roll(rank, -1)}
    constants = {**problem.constants, "teacher_input": problem.constants["teacher_input"].roll(-rank, -1)}
    return replace(problem, leaves_of=leaves, constants=constants)


# Of every divergence each form once, as far as problems have unlike code in it.
FORMS: Final = {
    "forward": ("parts", "teacher by features"),
    "reverse": ("parts", "gathered"),
    "mixed": ("parts", "dtensors", "gathered"),
    "masked": ("parts",),
    "few classes": ("dtensors",),
}


def distillation_on_ranks(group: dist.ProcessGroup | None) -> Results:
    """All of it, by the name of the problem and of the form."""
    from torch.distributed.tensor import Shard

    forms: dict[str, Callable[[DistillationProblem], Results]] = {
        "parts": lambda problem: run_parts(problem, group),
        "dtensors": lambda problem: run_dtensors(problem, group, Shard(0)),
        "teacher by features": lambda problem: run_dtensors(problem, group, Shard(1)),
        "gathered": lambda problem: run_gathered(problem, group),
    }
    problems = distillation_problems()
    return {name: {form: forms[form](problems[name]) for form in names} for name, names in FORMS.items()}


def distillation_calls_to_refuse(group: dist.ProcessGroup | None) -> dict[str, Callable[[], Any]]:
    """Calls that must fail on every rank, none of which may be left waiting for the others."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    problem = make_distillation(6, bias=True)
    arguments = {**problem.leaves_of, **problem.constants, "labels": problem.labels, "group": group or dist.group.WORLD}

    def call(**changes: Any) -> Callable[[], Any]:
        return lambda: linear_distillation_loss(**{**arguments, **changes})

    of_classes = {name: arguments[name] for name in OF_CLASSES}
    return {
        "unlike widths": call(**{name: value[: len(value) - rank] for name, value in of_classes.items()}),
        "unlike options": call(beta=0.5 if rank else 1.0),
        "unlike outputs": call(outputs=("logprob",) if rank else ()),
        "unlike needs": call(input=arguments["input"].clone().requires_grad_(rank == 0)),
        "unlike labels": call(labels=arguments["labels"] if rank else None),
        "label": call(labels=arguments["labels"] + 11 * ranks, outputs=("logprob",)),
    }


def main(rank: int, directory: Path, ranks: int) -> None:
    """Run everything of a group of all ranks, and save it as ``DIRECTORY/RANK.pt``."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, RANKS_WAIT, rank=rank, world_size=ranks)
    with nkilib.simulator.using(uninitialized="error", target="trn2", precise_fp=True):
        torch.save(distillation_on_ranks(None), directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    processes = int(sys.argv[2])
    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]), processes), processes, start_method="fork")
