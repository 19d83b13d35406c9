# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of Hugging Face's TRL that take hidden states and output layers, on the kernels.

After ``nkilib.torch.trl.install()`` TRL's SFT, DPO, KTO, GRPO and RLOO trainers compute token scores with
:func:`nkilib.torch.linear_token_scores`, and its distillation trainer compares student and teacher with
:func:`nkilib.torch.linear_distillation_loss`. Importing this package does not import ``trl``.

``installation`` has ``install``, which replaces TRL's functions; ``recipes`` computes them by the kernels;
``deepspeed_zero3`` gathers output layers whose parameters ZeRO-3 shards.
"""

from nkilib.torch.trl.installation import Undo, install

__all__ = ["Undo", "install"]
