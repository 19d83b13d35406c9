# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy and token scores on the kernels, for JAX: on a Neuron device, and on the CPU through the simulator.

Importing this package imports jax, which no other package of nkilib does. This package does not depend on
:mod:`nkilib.torch`.

``functions`` has the public functions, ``launching`` launches kernels on JAX's arrays, ``rows`` turns arrays into rows
and handles ``jax.vmap``, ``derivatives`` prepares arrays for derivatives, ``verification`` has the functions that
``python -m nkilib verify`` runs, and ``_requirement`` the accepted releases of JAX.
"""

from typing import TYPE_CHECKING

import nkilib._refuse_mixture
import nkilib.jax._requirement  # noqa: F401
from nkilib.base.missing_names import refusing
from nkilib.jax.functions.cross_entropy import CrossEntropyOutputs, cross_entropy
from nkilib.jax.functions.linear_cross_entropy import linear_cross_entropy
from nkilib.jax.functions.linear_token_scores import LinearTokenScores, linear_token_scores

__all__ = ["CrossEntropyOutputs", "LinearTokenScores", "cross_entropy", "linear_cross_entropy", "linear_token_scores"]

if not TYPE_CHECKING:  # a type checker would take every name for a known one
    __getattr__ = refusing(__name__, __all__)
