"""The arguments and results of TRL's function, computed by :func:`nkilib.torch.linear_token_scores`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from nkilib.experimental.loss.linear.launch import FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.autocast import autocast_dtype
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.trl.contract import KNOWN_OUTPUTS

# What TRL's function returns: log-probability, entropy, log sum p^2, mean logit, and whether the target is the argmax.
TokenResults: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# Our name of a result, by TRL's.
_NAMES: Final = {
    "entropy": "entropy",
    "log_sum_sq_probs": "log_sum_squares",
    "mean_logits": "mean_logit",
    "is_top1": "argmax",
}


@dataclass(frozen=True)
class Recipe:
    """The arguments of TRL's function that are no operands.

    Attributes:
        temperature: divides the logits.
        softcap: c of c * tanh(logits / c), before the temperature; None leaves them.
        logit_scale: multiplies the logits first.
        outputs: names of the results beside the log-probability.
    """

    temperature: float
    softcap: float | None
    logit_scale: float
    outputs: tuple[str, ...]

    def is_taken(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether the kernels compute these scores; TRL's own code computes the others."""
        if any(each is not None and each.dtype == torch.float64 for each in (hidden, weight, bias)):
            return False
        features = FEATURES_MIN <= hidden.shape[-1] <= FEATURES_MAX
        return features and self.logit_scale > 0 and KNOWN_OUTPUTS.issuperset(self.outputs)

    def cap(self) -> float | None:
        """The cap as TRL reads it: 0 means 1, and of a negative one the function is the same."""
        return None if self.softcap is None else abs(float(self.softcap)) or 1.0


def token_results(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, recipe: Recipe) -> TokenResults:
    """TRL's five results [N], differentiable in the first two.

    Args:
        hidden: [N, D].
        weight: [V, D].
        bias: [V].
        targets: [N], int64.
        recipe: the other arguments.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: as
            :func:`nkilib.torch.linear_token_scores`.
    """
    scores = linear_token_scores(
        hidden,
        weight,
        targets,
        linear_bias=bias,
        temperature=float(recipe.temperature),  # configurations have integers too
        logit_scale=float(recipe.logit_scale),
        logit_softcap=recipe.cap(),
        outputs=tuple(ours for theirs, ours in _NAMES.items() if theirs in recipe.outputs),
        # The operands may be of unlike types: TRL casts all to that of autocast, or of the hidden states.
        compute_dtype=autocast_dtype(hidden.device) or hidden.dtype,
    )
    is_top1 = None if scores.argmax is None else scores.argmax == targets
    return scores.logprob, scores.entropy, scores.log_sum_squares, scores.mean_logit, is_top1
