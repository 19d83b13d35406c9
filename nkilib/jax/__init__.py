"""Cross-entropy on the kernels for JAX: on a Neuron device, and on the CPU through the simulator.

Importing it imports jax, which nothing else in nkilib does. It knows nothing of :mod:`nkilib.torch`.
"""

import nkilib._unmixed
import nkilib.jax._requirement  # noqa: F401
from nkilib.jax.functions.cross_entropy.functional import cross_entropy
from nkilib.jax.functions.cross_entropy.outputs import CrossEntropyOutputs

__all__ = ["CrossEntropyOutputs", "cross_entropy"]
