# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Base classes of loss modules, which store arguments and pass them to the function; and the options of the operators
of losses, made from their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, make_dataclass

from torch import Tensor, nn

from nkilib.core.host.options import Dataclass


class LossModule(nn.Module):
    """A loss with a reduction, whose backward can write over its input.

    Args:
        reduction, inplace: see the function of the loss.
    """

    def __init__(self, reduction: str, inplace: bool) -> None:
        super().__init__()
        self.reduction = reduction
        self.inplace = inplace


class WeightedLossModule(LossModule):
    """A :class:`LossModule` with a weight.

    Args:
        weight: the weight, kept as a buffer that moves with the module.
        reduction, inplace: see the function of the loss.
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor | None, reduction: str, inplace: bool) -> None:
        super().__init__(reduction, inplace)
        self.register_buffer("weight", weight)


# The options of an operator: its defaults by name.
Defaults = Mapping[str, bool | int | float | str]


def group_of(defaults: Defaults) -> type[Dataclass]:
    """Return a dataclass whose fields are these options, each of the type of its default."""
    fields = [(name, type(value), field(default=value)) for name, value in defaults.items()]
    # Nobody makes an instance: the methods would be made for nothing, 34 times at each import.
    return make_dataclass(
        "OperatorOptions", fields, init=False, repr=False, eq=False, namespace={"__doc__": "Options."}
    )


def options_of_loss(options: Defaults) -> type[Dataclass]:
    """Return the options of a loss. Every loss has a reduction: the first option, unless ``options`` contain it."""
    return group_of(options if "reduction" in options else {"reduction": "mean", **options})


def requests_of(wanted: Mapping[str, bool]) -> type[Dataclass]:
    """Return the options that request gradients, by the names of the tensors. Other gradients are not computed."""
    return group_of({f"grad_{name}_wanted": value for name, value in wanted.items()})
