# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""DTensors: this rank's part of each tensor, and the ranks that hold the other classes of its rows.

- :func:`dtensor`: whether an argument is a DTensor;
- :func:`local_part`: all arguments of a loss as plain tensors, :class:`LocalPart`;
- :data:`OF_PARTS`: the loss functions for rows whose classes are spread over ranks;
- :func:`shards_of`: the mesh dimensions that shard a tensor; :func:`replicated`: a tensor that all ranks have;
- :func:`spread_of`: the ranks that hold a dimension of a tensor, :class:`Spread`, with sizes from :func:`chunk_sizes`;
- :func:`check_member`, :func:`without_rule`: errors for meshes and placements.

The results that are computed from the parts are plain tensors, for the rows of this rank. This module communicates
nothing. ``caller`` is the function that error messages name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from nkilib.torch.dispatch.checks import Caller, check_inplace
from nkilib.torch.dispatch.layout import axis_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

# The functions for rows spread over ranks, by the name of the function for whole rows, whose module cannot import them.
OF_PARTS: Final[dict[str, Callable[..., Any]]] = {}


def dtensor(tensor: object) -> DTensor | None:
    """Return the argument if it is a DTensor, else None.

    The check does not import the module of DTensor, which is slow to import.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None


@dataclass(frozen=True)
class Spread:
    """The ranks over which the columns of each row of a DTensor are spread.

    Attributes:
        group: the process group of these ranks, in the order of their columns.
        sizes: the number of columns of each rank.
    """

    group: ProcessGroup
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class LocalPart:
    """This rank's part of the arguments of a loss, as plain tensors.

    Attributes:
        input: the first argument.
        target: the second argument.
        others: further arguments by name.
        spread: the ranks over which the columns of a row are spread; None if this rank has whole rows.
        has_all_rows: whether this rank's part has all rows of the loss; False if other ranks have other rows.
    """

    input: Tensor
    target: Tensor
    others: Mapping[str, Tensor | None]
    spread: Spread | None
    has_all_rows: bool

    def call(self, of_rows: Callable[..., Any], of_parts: Callable[..., Any], **options: Any) -> Any:
        """Call a loss function with these tensors, and return its result.

        Args:
            of_rows: the function for whole rows; it takes input and target by position, and the others by name.
            of_parts: the function for parts of rows; it also takes the ``group`` of the ranks that share the rows, and
                the ``shard_sizes`` of these ranks.
            options: the options of both functions.
        """
        if self.spread is None:
            return of_rows(self.input, self.target, **self.others, **options)
        shards = {"group": self.spread.group, "shard_sizes": self.spread.sizes}
        return of_parts(self.input, self.target, **shards, **self.others, **options)


def chunk_sizes(length: int, ranks: int) -> tuple[int, ...]:
    """Return how many of ``length`` elements each rank has, if ``torch.chunk`` or ``Shard`` divides them.

    The first ranks have equal sizes, the next one may have fewer elements, and the last ones may have none.
    """
    most = -(-length // ranks)
    return tuple(min(most, max(length - rank * most, 0)) for rank in range(ranks))


def _check_order(caller: Caller, mesh: DeviceMesh, mesh_dim: int) -> None:
    """Check that the ranks of a mesh ascend along ``mesh_dim``, over whose ranks the columns are spread.

    A process group sorts its ranks, so the columns of another mesh would be permuted.
    """
    if torch.compiler.is_compiling():
        return
    ranks = mesh.mesh.movedim(mesh_dim, -1)
    if bool((ranks.diff(dim=-1) < 0).any()):
        raise NotImplementedError(
            f"{caller}: {caller.input} must be on a mesh whose ranks ascend along the dimension that shards the "
            f"{caller.noun}, got {mesh}; make the mesh in the order of the ranks"
        )


def spread_of(caller: Caller, input: DTensor, axis: int, mesh_dim: int) -> Spread:
    """Return the ranks over which dimension ``axis`` of ``input`` is spread: the ranks along dimension ``mesh_dim`` of
    its mesh.
    """
    mesh = input.device_mesh
    _check_order(caller, mesh, mesh_dim)
    return Spread(mesh.get_group(mesh_dim), chunk_sizes(input.shape[axis], mesh.size(mesh_dim)))


def without_rule(caller: Caller, name: str, tensor: DTensor, wanted: str) -> NotImplementedError:
    """Return the error for the argument ``name``, a DTensor with unsupported placements. ``wanted`` is the text of the
    placements that are supported.
    """
    return NotImplementedError(
        f"{caller}: {name}, a DTensor, must have the placements {wanted}, got {list(tensor.placements)}; pass "
        f"{name}.redistribute(placements=[...]) with them, or .full_tensor()"
    )


def shards_of(caller: Caller, name: str, tensor: DTensor) -> dict[int, int]:
    """Return a mapping from each mesh dimension that shards a DTensor to the dimension of the DTensor that it shards.

    Raises:
        NotImplementedError: another placement; the message names the argument ``name``.
    """
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
    """Return the result of :func:`shards_of` for a tensor that lacks the dimension ``axis``.

    ``shards`` is the result for the tensor with ``axis``. A mesh dimension that shards ``axis`` is left out, and the
    dimensions after ``axis`` have numbers smaller by 1.
    """
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
    """Return the argument ``name`` as a plain tensor. It may be a DTensor that is equal on all ranks, a plain tensor or
    None.

    Raises:
        NotImplementedError: the DTensor is sharded, or requires grad.
    """
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
    """Raise ValueError if a plain target has the rows of the whole ``input``, but ``local``, this rank's part, has
    fewer.

    The shape check would reject it too, with a less clear message.
    """

    def rows(shape: torch.Size) -> torch.Size:
        return shape if target.dim() == len(shape) else shape[:axis] + shape[axis + 1 :]

    if target.shape == rows(input.shape) != rows(local.shape):
        raise ValueError(
            f"{caller}: this rank's part of {caller.input}, a DTensor, has the shape {tuple(local.shape)}, and a plain "
            f"target must belong to these rows, got shape {tuple(target.shape)}; pass this rank's part, or a DTensor"
        )


def check_member(caller: Caller, mesh: DeviceMesh) -> None:
    """Check that this process is in the mesh.

    Raises:
        ValueError: the process is not in the mesh.
    """
    if not torch.compiler.is_compiling() and mesh.get_coordinate() is None:
        raise ValueError(f"{caller}: this process must be in the mesh of {caller.input}, {mesh}, and is not")


def _report_overwriting(local: Tensor, whole: DTensor) -> None:
    """Let autograd count the backward's write over ``local``, this rank's tensor of the DTensor ``whole``, as a change
    of ``whole``.

    Code that saved ``whole`` then gets PyTorch's error for a tensor changed in place. A DTensor does not track changes
    to the memory of its local tensor.
    """
    overwritten: list[Tensor] = [whole]

    def count(_: Tensor) -> None:
        while overwritten:  # once; then the memory is released
            torch.autograd.graph.increment_version(overwritten.pop())

    local.register_hook(count)  # type: ignore[no-untyped-call]


def local_part(
    caller: Caller, input: DTensor, target: Tensor, others: Mapping[str, Tensor | None], dim: int, inplace: bool
) -> LocalPart:
    """Return this rank's part of the arguments of a loss.

    A dimension of the mesh may replicate ``input``, shard its rows, or shard ``dim``. This rank's part has the rows of
    this rank's shard. If a mesh dimension shards ``dim``, its ranks are a group that shares each row. A ``target`` that
    is a DTensor must have the placements of the rows; a plain target belongs to this rank's rows. All other tensors
    must be replicated, or plain.

    Args:
        caller: the function that error messages name.
        input: the first argument.
        target: a tensor of the shape of ``input``, or of that shape without ``dim``.
        others: further tensors by name.
        dim: the dimension of a row, 1 or -1.
        inplace: whether the memory of ``input`` will be overwritten.

    Raises:
        NotImplementedError: an unsupported placement (the message names the placement to redistribute to); one of
            ``others`` requires grad.
        ValueError: the target covers all ranks' rows, or is on another mesh; this rank is not in the mesh.
        RuntimeError: ``inplace`` for a leaf, or under torch.compile.
    """
    axis, mesh = axis_of(input, dim), input.device_mesh
    check_member(caller, mesh)
    shards = shards_of(caller, caller.input, input)
    spread_over = [at for at, sharded in shards.items() if sharded == axis]
    if len(spread_over) > 1:
        raise without_rule(caller, caller.input, input, f"Shard({axis}) in one dimension of the mesh only")
    if inplace:
        check_inplace(caller, input, {})  # the memory that local tensors share is checked where they are used
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
