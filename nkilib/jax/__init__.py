# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy and token scores on the kernels, for JAX: on a Neuron device, and on the CPU through the simulator.

Importing this package imports jax, which no other package of nkilib does. It does not depend on :mod:`nkilib.torch`.
"""

import nkilib._unmixed
import nkilib.jax._requirement  # noqa: F401
from nkilib.jax.functions.cross_entropy.functional import cross_entropy
from nkilib.jax.functions.cross_entropy.outputs import CrossEntropyOutputs
from nkilib.jax.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.jax.functions.linear_token_scores.functional import linear_token_scores
from nkilib.jax.functions.linear_token_scores.results import LinearTokenScores

__all__ = ["CrossEntropyOutputs", "LinearTokenScores", "cross_entropy", "linear_cross_entropy", "linear_token_scores"]
