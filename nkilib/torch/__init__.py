"""Cross-entropy on the kernels for PyTorch: on a Neuron device, and on the CPU through the simulator.

Importing it imports torch, which nothing else in nkilib does, and registers the operators ``torch.ops.nkilib``.
"""

import nkilib._unmixed  # noqa: F401
from nkilib.torch.functional import cross_entropy
from nkilib.torch.modules import CrossEntropyLoss
from nkilib.torch.outputs import CrossEntropyOutputs
from nkilib.torch.vocab_parallel import vocab_parallel_cross_entropy

__all__ = ["CrossEntropyLoss", "CrossEntropyOutputs", "cross_entropy", "vocab_parallel_cross_entropy"]
