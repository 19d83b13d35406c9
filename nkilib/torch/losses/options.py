# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The options of the operators of losses: dataclasses made from defaults.

:func:`options_of_loss` adds the reduction, :func:`gradient_requests` makes flags of the names of tensors, and
:func:`options_from_defaults` serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, make_dataclass

from nkilib.core.host.options import Dataclass

# The options of an operator: its defaults by name.
Defaults = Mapping[str, bool | int | float | str]


def options_from_defaults(defaults: Defaults) -> type[Dataclass]:
    """Return a dataclass whose fields are these options, each of the type of its default."""
    fields = [(name, type(value), field(default=value)) for name, value in defaults.items()]
    # Nobody makes an instance: the methods would be made for nothing, 34 times at each import.
    return make_dataclass(
        "OperatorOptions", fields, init=False, repr=False, eq=False, namespace={"__doc__": "Options."}
    )


def options_of_loss(options: Defaults) -> type[Dataclass]:
    """Return the options of a loss. Every loss has a reduction: the first option, unless ``options`` contain it."""
    return options_from_defaults(options if "reduction" in options else {"reduction": "mean", **options})


def gradient_requests(wanted: Mapping[str, bool]) -> type[Dataclass]:
    """Return the options that request gradients, by the names of the tensors. Other gradients are not computed."""
    return options_from_defaults({f"grad_{name}_wanted": value for name, value in wanted.items()})
