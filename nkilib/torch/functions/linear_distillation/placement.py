# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The conversion of DTensor arguments of ``linear_distillation_loss`` to plain tensors (:func:`plain_arguments`).

A *layer* is the weight and the bias of one model. A sharded layer becomes this rank's part of the vocabulary, or is
gathered. ``caller`` is the function that error messages name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist
from torch import Tensor

from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.dtensors import check_member, chunk_sizes, dtensor, shards_of
from nkilib.torch.functions.linear_distillation.checks import DistillationArguments, Model
from nkilib.torch.functions.linear_distillation.operators import LINEAR_DISTILLATION
from nkilib.torch.functions.vocab_parallel.linear_placement import (
    as_weight,
    averaged,
    constant,
    same_everywhere,
    spread_of_classes,
)
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards, check_no_group, group_place, shards_of_ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


# The caller in errors about the weight, of which each rank may have a part.
_WEIGHT_CALLER: Final = LINEAR_DISTILLATION._replace(input="linear_weight", noun="weight")


@dataclass(frozen=True)
class PlacedArguments:
    """The arguments as plain tensors.

    Attributes:
        arguments: this rank's arguments.
        shards: the classes of each rank; None if this rank has all classes.
        group: the group that shares the vocabulary; None for all processes.
    """

    arguments: DistillationArguments
    shards: VocabularyShards | None
    group: dist.ProcessGroup | None


def _gathered_student(caller: Caller, weight: DTensor, arguments: DistillationArguments) -> Model:
    """Return the student's hidden states with its weight and bias gathered from all ranks.

    The gradients of weight and bias are averaged over the ranks, as FSDP2 does.
    """
    check_member(_WEIGHT_CALLER, weight.device_mesh)
    if arguments.grad_weight_sum is not None:
        raise NotImplementedError(
            f"{caller}: grad_weight_sum is not supported for a linear_weight, a DTensor, that is gathered: its "
            f"gradient is a sum over the ranks; leave it out"
        )
    bias = dtensor(arguments.student.bias)
    return replace(
        arguments.student,
        weight=averaged(caller, "linear_weight", weight),
        bias=arguments.student.bias if bias is None else averaged(caller, "linear_bias", bias),
    )


def _gathered(caller: Caller, name: str, tensor: Tensor) -> Tensor:
    placed = dtensor(tensor)
    if placed is None:
        return tensor
    check_member(caller._replace(input=name), placed.device_mesh)
    return constant(caller, name, placed)


def _of_own_positions(caller: Caller, arguments: DistillationArguments, student: Model) -> DistillationArguments:
    """Return the arguments for a rank that has positions of its own and all classes, as under FSDP2.

    Tensors with one number per position must be plain. ``student`` replaces the student of
    ``arguments``, and the teacher's layer is gathered.
    """
    for name, tensor in (
        (arguments.teacher.names.input, arguments.teacher.input),
        ("labels", arguments.labels),
        ("row_weight", arguments.row_weight),
    ):
        if dtensor(tensor) is not None:
            raise NotImplementedError(
                f"{caller}: {name} must be plain where input is, got a DTensor; pass {name}.to_local()"
            )
    teacher = replace(
        arguments.teacher,
        weight=_gathered(caller, arguments.teacher.names.weight, arguments.teacher.weight),
        bias=None
        if arguments.teacher.bias is None
        else _gathered(caller, arguments.teacher.names.bias, arguments.teacher.bias),
    )
    return replace(arguments, student=student, teacher=teacher)


def _holds_own_classes(
    caller: Caller, name: str, tensor: DTensor, shards: VocabularyShards, group: dist.ProcessGroup | None
) -> bool:
    """Return whether this rank's shard of a teacher's tensor has the same classes as its shard of the student's weight.

    The classes are the same if the same group shards both tensors in the same sizes.
    """
    mesh = tensor.device_mesh
    several = [at for at in range(mesh.ndim) if mesh.size(at) > 1]
    if any(placement.is_partial() for placement in tensor.placements) or len(several) != 1:
        return False
    (at,) = several
    if shards_of(caller, name, tensor) != {at: 0} or chunk_sizes(tensor.shape[0], mesh.size(at)) != shards.sizes:
        return False
    of_teacher, of_student = mesh.get_group(at), group or dist.group.WORLD
    return dist.get_process_group_ranks(of_teacher) == dist.get_process_group_ranks(of_student)


def _of_own_classes(
    caller: Caller,
    arguments: DistillationArguments,
    student: Model,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
) -> DistillationArguments:
    """Return the arguments for a rank that has a part of the classes and all positions.

    Tensors with one number per position must be the same on all ranks. The teacher's weight and bias are cut to the
    classes of the student's shard if they are DTensors; if they are plain, they must have these classes already.
    """
    names = arguments.teacher.names

    def own(name: str, tensor: Tensor) -> Tensor:
        placed = dtensor(tensor)
        if placed is None:
            return tensor
        if _holds_own_classes(caller, name, placed, shards, group):
            return placed.to_local()
        whole = _gathered(caller, name, placed)
        if whole.dim() == 0 or whole.shape[0] != shards.num_classes:
            raise ValueError(
                f"{caller}: {name}, a DTensor, must have the {shards.num_classes} classes of all ranks, got shape "
                f"{tuple(whole.shape)}; slice both weights to the classes that the models share"
            )
        return shards.own_part(whole)

    teacher = replace(
        arguments.teacher,
        input=same_everywhere(caller, names.input, arguments.teacher.input),
        weight=own(names.weight, arguments.teacher.weight),
        bias=None if arguments.teacher.bias is None else own(names.bias, arguments.teacher.bias),
    )
    return replace(
        arguments,
        student=student,
        teacher=teacher,
        labels=None if arguments.labels is None else same_everywhere(caller, "labels", arguments.labels),
        row_weight=None
        if arguments.row_weight is None
        else same_everywhere(caller, "row_weight", arguments.row_weight),
    )


def plain_arguments(caller: Caller, arguments: DistillationArguments, group: Any) -> PlacedArguments:
    """Return the arguments without DTensors.

    The vocabulary is sharded if a plain student's weight comes with ``group``, or if the hidden states are a replicated
    DTensor and one dimension of the mesh shards the classes of the student's weight. The teacher's weight in the result
    then has the classes of this rank's student weight; a DTensor is gathered for that only if this rank's shard of it
    has other classes. If only weights are DTensors, the hidden states are those of this rank's own tokens: the weights
    are gathered, and the gradient of the student's is averaged over the ranks, as by FSDP2.

    Raises:
        NotImplementedError: an unsupported placement; the message names the placements to redistribute to.
        ValueError: both a group and a DTensor.
    """
    weight, input = dtensor(arguments.student.weight), dtensor(arguments.student.input)
    if weight is None:
        if input is not None:
            raise NotImplementedError(
                f"{caller}: input, a DTensor of placements {list(input.placements)}, needs a linear_weight that is "
                f"a DTensor of placements Shard(0); pass input.to_local(), or distribute linear_weight"
            )
        if group is None:
            return PlacedArguments(_of_own_positions(caller, arguments, arguments.student), None, None)
        place = group_place(caller, group)
        rows = arguments.student.weight.shape[0] if arguments.student.weight.dim() else 0
        shards = shards_of_ranks(_WEIGHT_CALLER, rows, place, None, None)
        return PlacedArguments(_of_own_classes(caller, arguments, arguments.student, shards, group), shards, group)
    check_no_group(_WEIGHT_CALLER, group, None)
    if input is None:
        return PlacedArguments(
            _of_own_positions(caller, arguments, _gathered_student(caller, weight, arguments)), None, None
        )
    spread = spread_of_classes(caller, _WEIGHT_CALLER, weight)
    student = replace(
        arguments.student,
        input=same_everywhere(caller, "input", input),
        weight=weight.to_local(),
        bias=as_weight(caller, "linear_bias", arguments.student.bias, weight),
    )
    summed = as_weight(caller, "grad_weight_sum", arguments.grad_weight_sum, weight)
    shards = VocabularyShards(spread.sizes, dist.get_rank(spread.group))
    own = _of_own_classes(caller, replace(arguments, grad_weight_sum=summed), student, shards, spread.group)
    return PlacedArguments(own, shards, spread.group)
