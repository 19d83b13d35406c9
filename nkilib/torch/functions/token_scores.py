# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``token_scores``: log-probability and entropy of each position (:class:`TokenScores`) from one pass over logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.overrides import handle_torch_function
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, check_flags, hides_unknown, refuse_unknown, values_of
from nkilib.torch.dispatch.checks import Caller, check_tensors, is_lazy
from nkilib.torch.dispatch.dtensors import dtensor, local_part
from nkilib.torch.dispatch.layout import as_rows, rows_shape
from nkilib.torch.functions.cross_entropy.checks import check_arguments, check_inplace_logits, checked_options
from nkilib.torch.functions.cross_entropy.operators import CROSS_ENTROPY, DERIVATIVE, FORWARD, ForwardResults, Wanted
from nkilib.torch.functions.vocab_parallel.autograd import vocab_parallel_results
from nkilib.torch.functions.vocab_parallel.shards import check_whole, group_place, shards_of_ranks, without_padding
from nkilib.torch.losses.outputs import in_shape_of_rows
from nkilib.torch.losses.temperatures import check_rows, number_and_tensor, temperatures_of_rows

_CALLER: Final = Caller("token_scores", "logits", "logits", CROSS_ENTROPY.instead)


class TokenScores(NamedTuple):
    """The scores of each position, float32, of the shape of the targets, in nats.

    Attributes:
        logprob: log-probability of the target, at most 0; 0 where it is ignored. Differentiable.
        entropy: entropy of the softmax of the logits, at ignored positions too; empty, [0], if it is not requested.
            Differentiable.
    """

    logprob: Tensor
    entropy: Tensor


@hides_unknown
def token_scores(
    logits: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    ignore_index: int = -100,
    logit_softcap: float | None = None,
    temperature: float | Tensor = 1.0,
    exact_maximum: bool | None = None,
    num_classes: int | None = None,
    shard_sizes: Sequence[int] | None = None,
    entropy: bool = True,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> TokenScores:
    """Compute the log-probability of each target and the entropy of each position, for reinforcement learning.

    The scores equal, with z = softcap(logits).float() / temperature, where softcap is the cap that ``logit_softcap``
    describes::

        logprob = -torch.nn.functional.cross_entropy(z.movedim(-1, 1), target, reduction="none")
        entropy = z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)

    with one read of the logits in the forward of both scores and one in their backward, in float32 for all dtypes of
    the logits, and without a tensor of the size of the logits except the gradient.

    Args:
        logits: [..., V], bfloat16, float16 or float32; with ``group`` the columns of this rank, or a DTensor.
        target: [...] of any integer type, each in [0, V) or ``ignore_index``.
        group: the ranks that share the vocabulary, see :func:`nkilib.torch.vocab_parallel_cross_entropy`. None: the
            logits have all classes. A DTensor defines its own group.
        ignore_index: target of ignored positions, such as those of the prompt. Their ``logprob`` is 0.
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c); None applies no cap.
        temperature: divides the logits after the cap, usually the temperature of the samples; from 1e-6 to 1e6. A
            tensor has one temperature for all positions or one per position, and other values need no compilation: see
            :func:`nkilib.torch.cross_entropy`.
        exact_maximum: True computes the maximum of every row before its exponentials, False uses a shift known in
            advance, None chooses the one with the shorter modelled time.
        num_classes, shard_sizes: the classes of the ranks of ``group``, see
            :func:`nkilib.torch.vocab_parallel_cross_entropy`.
        entropy: whether to compute the entropy.
        inplace: the backward writes the gradient over the memory of ``logits``.

    Returns:
        The scores; with ``group`` or a sharded vocabulary they are the same on every rank.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see :func:`nkilib.torch.cross_entropy`.
        ValueError: ``num_classes`` or ``shard_sizes`` without a group, or a group with a DTensor.
    """
    if unknown:
        refuse_unknown(token_scores, unknown)
    recipe: dict[str, Any] = {
        "ignore_index": ignore_index,
        "logit_softcap": logit_softcap,
        "temperature": temperature,
        "exact_maximum": exact_maximum,
    }
    check_flags(_CALLER, entropy=entropy, inplace=inplace)
    if is_lazy(logits):
        recipe |= {"num_classes": num_classes, "shard_sizes": shard_sizes, "entropy": entropy}
        lazy: TokenScores = handle_torch_function(token_scores, (logits,), logits, target, group, **recipe)
        return lazy
    whole = dtensor(logits)
    if whole is not None:
        check_tensors(_CALLER, {"target": target})
        part = local_part(_CALLER, whole, target, {}, -1, inplace)
        check_rows(_CALLER, temperature, part.has_all_rows)
        part = without_padding(_CALLER, part, -1, group, num_classes, shard_sizes)
        scores: TokenScores = part.call(token_scores, token_scores, **recipe, entropy=entropy, inplace=inplace)
        return scores
    number, tensor = number_and_tensor(temperature)
    options = checked_options(_CALLER, token_scores, **{**recipe, "temperature": number})
    check_arguments(_CALLER, logits, target, None, options, "none", None, -1)
    if target.is_floating_point():
        raise RuntimeError(
            f"{_CALLER}: expected target dtype to be an integer type, but got {target.dtype}; probabilities have no "
            f"single class to score"
        )
    if inplace:
        check_inplace_logits(_CALLER, logits, -1, target=target)
    shape = rows_shape(logits, -1)
    temperatures = temperatures_of_rows(_CALLER, tensor, shape, logits.device)
    rows, classes, wanted = as_rows(logits, -1), target.reshape(-1), Wanted(with_entropy=entropy)
    if group is None:
        check_whole(_CALLER, num_classes, shard_sizes)
        keywords = FORWARD.taken({**options, **values_of(wanted)})
        results = ForwardResults(*DERIVATIVE.apply(inplace, rows, classes, None, temperatures, **keywords))
    else:
        shards = shards_of_ranks(_CALLER, rows.shape[1], group_place(_CALLER, group), num_classes, shard_sizes)
        results = vocab_parallel_results(
            _CALLER, rows, classes, None, temperatures, options, shards, group, inplace, wanted, {}
        )
    # A difference, because the negative of 0 has a sign.
    return TokenScores(0.0 - results.loss.reshape(shape), in_shape_of_rows(results.entropy, shape if entropy else (0,)))
