# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""DTensors: this rank's part of each, and the ranks that hold the rest of a row.

What is computed from the parts is plain: the result of the rows that this rank has. Nothing is communicated here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.checks import check_inplace
from nkilib.torch.dispatch.layout import axis_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

# For rows of which each rank holds a part: the function, by the name of the one for whole rows, above which it stands.
OF_PARTS: Final[dict[str, Callable[..., Any]]] = {}


def dtensor(tensor: object) -> DTensor | None:
    """The argument if it is a DTensor. Their module, which takes a while, is not imported to find out."""
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None


@dataclass(frozen=True)
class Spread:
    """The ranks over which every row is spread.

    Attributes:
        group: of them, in the order of their columns.
        sizes: columns of each.
    """

    group: ProcessGroup
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class LocalPart:
    """What this rank has of the arguments of a loss, plain tensors.

    Attributes:
        input: the first argument.
        target: the second one.
        others: by name.
        spread: None if this rank has whole rows.
        has_all_rows: no other rank has rows that this one has not.
    """

    input: Tensor
    target: Tensor
    others: Mapping[str, Tensor | None]
    spread: Spread | None
    has_all_rows: bool

    def call(self, of_rows: Callable[..., Any], of_parts: Callable[..., Any], **options: Any) -> Any:
        """One function of whole rows, or the other of parts of rows, of these tensors.

        Args:
            of_rows: takes input and target by position, the others by name.
            of_parts: likewise, and the ``group`` and the ``shard_sizes`` of its ranks.
            options: of both.
        """
        if self.spread is None:
            return of_rows(self.input, self.target, **self.others, **options)
        shards = {"group": self.spread.group, "shard_sizes": self.spread.sizes}
        return of_parts(self.input, self.target, **shards, **self.others, **options)


def local_part(
    caller: Caller, input: DTensor, target: Tensor, others: Mapping[str, Tensor | None], dim: int, inplace: bool
) -> LocalPart:
    """This rank's part of the arguments of a loss.

    The rule, for each dimension of the mesh of ``input``: what is replicated is there; a shard of the rows is this
    rank's; a shard of ``dim`` makes the ranks of that dimension of the mesh a group. A ``target`` that is a DTensor has
    to be placed as the rows are, a plain one is that of this rank's rows. All else has to be replicated, or plain.

    Args:
        caller: who is named in errors.
        input: the first argument.
        target: of the shape of ``input``, or of that without ``dim``.
        others: further tensors by name.
        dim: that of a row, 1 or -1.
        inplace: the memory of ``input`` is going to be overwritten.

    Raises:
        NotImplementedError: a placement without a rule, with the one to redistribute to; one of ``others`` requires
            grad.
        ValueError: the target is that of all ranks' rows, or on another mesh; this rank is not in the mesh.
        RuntimeError: ``inplace`` for a leaf, or under torch.compile.
    """
    axis, mesh = axis_of(input, dim), input.device_mesh
    check_member(caller, mesh)
    shards = shards_of(caller, caller.input, input)
    spread_over = [at for at, sharded in shards.items() if sharded == axis]
    if len(spread_over) > 1:
        raise without_rule(caller, caller.input, input, f"Shard({axis}) in one dimension of the mesh only")
    if inplace:
        check_inplace(caller, input)
    local, placed = input.to_local(), dtensor(target)
    if inplace and local.requires_grad:
        _report_overwriting(local, input)
    if placed is None:
        _check_rows(caller, input, local, target, axis)
    else:
        target = _placed_alike(
            caller, placed, mesh, shards if target.shape == input.shape else _without_axis(shards, axis)
        )
    return LocalPart(
        local,
        target,
        {name: replicated(caller, name, tensor) for name, tensor in others.items()},
        spread_of(caller, input, axis, spread_over[0]) if spread_over else None,
        has_all_rows=all(sharded == axis for sharded in shards.values()),
    )


def chunk_sizes(length: int, ranks: int) -> tuple[int, ...]:
    """Of each rank, as ``torch.chunk`` and ``Shard`` divide: equal ones, then a smaller one, then none."""
    most = -(-length // ranks)
    return tuple(min(most, max(length - rank * most, 0)) for rank in range(ranks))


def spread_of(caller: Caller, input: DTensor, axis: int, mesh_dim: int) -> Spread:
    """The ranks of a dimension of the mesh that shards the dimension ``axis``."""
    mesh = input.device_mesh
    _check_order(caller, mesh, mesh_dim)
    return Spread(mesh.get_group(mesh_dim), chunk_sizes(input.shape[axis], mesh.size(mesh_dim)))


def shards_of(caller: Caller, name: str, tensor: DTensor) -> dict[int, int]:
    """The dimension of the tensor that is sharded, by the dimension of the mesh."""
    from torch.distributed.tensor import Shard

    mesh, shards = tensor.device_mesh, {}
    for at, placement in enumerate(tensor.placements):
        if mesh.size(at) == 1 or placement.is_replicate():
            continue
        if type(placement) is not Shard:  # in earlier versions a strided one is a subclass
            raise without_rule(caller, name, tensor, "Replicate() or Shard(dim)")
        shards[at] = placement.dim % tensor.dim()
    return shards


def _without_axis(shards: Mapping[int, int], axis: int) -> dict[int, int]:
    """The shards of a tensor that lacks a dimension, by which it is not sharded."""
    return {at: sharded - (sharded > axis) for at, sharded in shards.items() if sharded != axis}


def _placed_alike(caller: Caller, target: DTensor, mesh: DeviceMesh, expected: Mapping[int, int]) -> Tensor:
    if target.device_mesh != mesh:
        raise ValueError(
            f"{caller}: target must be on the mesh of {caller.input}, {mesh}, got {target.device_mesh}; distribute it "
            f"there"
        )
    if shards_of(caller, "target", target) != expected:
        placements = [f"Shard({expected[at]})" if at in expected else "Replicate()" for at in range(mesh.ndim)]
        raise without_rule(caller, "target", target, ", ".join(placements))
    return target.to_local()


def replicated(caller: Caller, name: str, tensor: Tensor | None) -> Tensor | None:
    """A tensor that every rank has alike; one that is no DTensor is handed on."""
    placed = dtensor(tensor)
    if placed is None:
        return tensor
    if shards_of(caller, name, placed):
        raise NotImplementedError(
            f"{caller}: {name} must be a plain tensor or replicated, got a DTensor of placements "
            f"{list(placed.placements)}; pass {name}.full_tensor()"
        )
    if placed.requires_grad and torch.is_grad_enabled():  # its gradient would be this rank's alone
        raise NotImplementedError(
            f"{caller}: {name}, a DTensor, must not require grad; pass {name}.detach(), or {name}.to_local() with the "
            f"grad_placements that it shall have"
        )
    return placed.to_local()


def _check_rows(caller: Caller, input: DTensor, local: Tensor, target: Tensor, axis: int) -> None:
    """Refuse a plain target of the rows of all ranks, before its shape is refused without a reason."""

    def rows(shape: torch.Size) -> torch.Size:
        return shape if target.dim() == len(shape) else shape[:axis] + shape[axis + 1 :]

    if target.shape == rows(input.shape) != rows(local.shape):
        raise ValueError(
            f"{caller}: of {caller.input}, a DTensor, this rank has the shape {tuple(local.shape)}, and a plain target "
            f"must be that of these rows, got shape {tuple(target.shape)}; pass this rank's part, or a DTensor"
        )


def check_member(caller: Caller, mesh: DeviceMesh) -> None:
    """Refuse a mesh without this process.

    Raises:
        ValueError: always then.
    """
    if not torch.compiler.is_compiling() and mesh.get_coordinate() is None:
        raise ValueError(f"{caller}: this process must be in the mesh of {caller.input}, {mesh}, and is not")


def _check_order(caller: Caller, mesh: DeviceMesh, mesh_dim: int) -> None:
    """Refuse a mesh whose ranks do not ascend: a process group sorts them, and columns would change places."""
    if torch.compiler.is_compiling():
        return
    ranks = mesh.mesh.movedim(mesh_dim, -1)
    if bool((ranks.diff(dim=-1) < 0).any()):
        raise NotImplementedError(
            f"{caller}: {caller.input} must be on a mesh whose ranks ascend along the dimension that shards the "
            f"{caller.noun}, got {mesh}; make the mesh in the order of the ranks"
        )


def _report_overwriting(local: Tensor, whole: DTensor) -> None:
    """Have autograd know of the memory that a backward overwrites: whoever saved ``whole`` itself gets its error.

    A DTensor does not count what happens to the memory of its local tensor.
    """
    overwritten: list[Tensor] = [whole]

    def count(_: Tensor) -> None:
        while overwritten:  # once, and then the memory is held no longer
            torch.autograd.graph.increment_version(overwritten.pop())

    local.register_hook(count)  # type: ignore[no-untyped-call]


def without_rule(caller: Caller, name: str, tensor: DTensor, wanted: str) -> NotImplementedError:
    """The error for placements that mean nothing here; ``wanted`` are those that do."""
    return NotImplementedError(
        f"{caller}: {name}, a DTensor, must have the placements {wanted}, got {list(tensor.placements)}; pass "
        f"{name}.redistribute(placements=[...]) with them, or .full_tensor()"
    )
