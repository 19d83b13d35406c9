# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of Hugging Face's TRL that take hidden states and output layers, on the kernels.

After ``nkilib.torch.trl.install()`` its SFT, DPO, KTO, GRPO and RLOO trainers score tokens by
:func:`nkilib.torch.linear_token_scores`, and its distillation trainer compares student and teacher by
:func:`nkilib.torch.linear_distillation_loss`. Importing it does not import ``trl``.
"""

from nkilib.torch.trl.installation import Undo, install

__all__ = ["Undo", "install"]
