"""The loss of Hugging Face causal language models on the kernels: ``model.loss_function = causal_lm_loss``.

Importing it does not import ``transformers``.
"""

from nkilib.torch.transformers.loss import causal_lm_loss

__all__ = ["causal_lm_loss"]
