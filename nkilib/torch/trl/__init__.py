"""Token scores from hidden states on the kernels, in the trainers of Hugging Face's TRL.

After ``nkilib.torch.trl.install()`` its SFT, DPO, KTO, GRPO and RLOO trainers score tokens by
:func:`nkilib.torch.linear_token_scores`. Importing it does not import ``trl``.
"""

from nkilib.torch.trl.installation import Undo, install

__all__ = ["Undo", "install"]
