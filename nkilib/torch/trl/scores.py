# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments and results of TRL's token scores, computed by :func:`nkilib.torch.linear_token_scores`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from nkilib.experimental.loss.linear.shared.launch import FEATURES_MAX, FEATURES_MIN, LOGIT_SCALE_MAX, LOGIT_SCALE_MIN
from nkilib.torch.dispatch.autocast import autocast_dtype
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.trl.contract import KNOWN_OUTPUTS
from nkilib.torch.trl.operands import Head, Operands, read_cap, rounded

# The results of TRL's function: log-probability, entropy, log sum p^2, mean logit, and whether the target is argmax.
TokenResults: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# nkilib's name of a result, by TRL's.
_NAMES: Final = {
    "entropy": "entropy",
    "log_sum_sq_probs": "log_sum_squares",
    "mean_logits": "mean_logit",
    "is_top1": "argmax",
}


@dataclass(frozen=True)
class ScoreRecipe:
    """The arguments of TRL's ``ChunkedLogProbFunction`` beside tensors and ``chunk_size``.

    Attributes:
        temperature: the divisor of the logits.
        softcap: c of c * tanh(logits / c), before the temperature; None applies no cap.
        logit_scale: the factor of the logits, applied first.
        outputs: names of the results beside the log-probability.
    """

    temperature: float
    softcap: float | None
    logit_scale: float
    outputs: tuple[str, ...]

    def is_supported(self, head: Head) -> bool:
        """Return whether the kernels compute these scores; TRL's own code computes the others."""
        if any(tensor is not None and tensor.dtype == torch.float64 for tensor in head):
            return False
        features = FEATURES_MIN <= head.hidden.shape[-1] <= FEATURES_MAX
        has_scale = LOGIT_SCALE_MIN <= self.logit_scale <= LOGIT_SCALE_MAX
        return features and has_scale and KNOWN_OUTPUTS.issuperset(self.outputs)

    def results(self, operands: Operands) -> TokenResults:
        """Return TRL's five results [N], the first two of which are differentiable.

        Args:
            operands: hidden states [N, D], weight [V, D], bias [V], and targets [N], int64.

        Raises:
            TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see
                :func:`nkilib.torch.linear_token_scores`.
        """
        head, targets = Head.of(operands[:3]), operands[3]
        if targets is None:
            raise TypeError("nkilib.torch.trl: targets must be a tensor, got None; pass them")
        # The operands may have different dtypes: TRL casts all to autocast's, or to that of the hidden states.
        compute_dtype = autocast_dtype(head.hidden.device) or head.hidden.dtype
        scores = linear_token_scores(
            head.hidden,
            head.weight,
            targets,
            linear_bias=None if head.bias is None else rounded(head.bias, compute_dtype),
            temperature=float(self.temperature),  # configurations have integers too
            logit_scale=float(self.logit_scale),
            logit_softcap=read_cap(self.softcap),
            outputs=tuple(ours for theirs, ours in _NAMES.items() if theirs in self.outputs),
            compute_dtype=compute_dtype,
        )
        is_top1 = None if scores.argmax is None else scores.argmax == targets
        return scores.logprob, scores.entropy, scores.log_sum_squares, scores.mean_logit, is_top1
