# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The options of the operators of losses: dataclasses made from defaults.

:func:`options_of_loss` returns the options of a loss with the reduction, :func:`gradient_requests` flags that request
gradients. Both use :func:`options_from_defaults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, make_dataclass

from nkilib.core.host.options import Dataclass

# The options of an operator: its defaults by name.
Defaults = Mapping[str, bool | int | float | str]


def options_from_defaults(defaults: Defaults) -> type[Dataclass]:
    """Return a new dataclass with a field for each item of ``defaults``, with its name, value and type."""
    fields = [(name, type(value), field(default=value)) for name, value in defaults.items()]
    # Nobody makes an instance: the methods would be made for nothing, 34 times at each import.
    return make_dataclass(
        "OperatorOptions", fields, init=False, repr=False, eq=False, namespace={"__doc__": "Options."}
    )


def options_of_loss(options: Defaults) -> type[Dataclass]:
    """Return a dataclass of the options of a loss: ``options`` by name with their defaults. A reduction is added in
    front if it is missing.
    """
    return options_from_defaults(options if "reduction" in options else {"reduction": "mean", **options})


def gradient_requests(wanted: Mapping[str, bool]) -> type[Dataclass]:
    """Return a dataclass with one bool option for each tensor in ``wanted``, by which a call requests its gradient.

    ``wanted`` has the default of each option. A gradient that is not requested is not computed.
    """
    return options_from_defaults({f"grad_{name}_wanted": value for name, value in wanted.items()})
