"""What ``linear_token_scores`` refuses beside what ``linear_cross_entropy`` does: values are never looked at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.reference import reason_for_reference
from nkilib.torch.functions.linear_token_scores.operators import LINEAR_TOKEN_SCORES

# The names that ``outputs`` may have.
OUTPUTS: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")
# Who is named where the weight, of which each rank may have a part, does not fit.
OF_WEIGHT: Final = LINEAR_TOKEN_SCORES._replace(input="linear_weight", noun="weight")


def checked_outputs(caller: Caller, outputs: Iterable[str]) -> frozenset[str]:
    """The names of the scores that are asked for.

    Raises:
        TypeError: no iterable, or a string.
        ValueError: another name.
    """
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        remedy = f"; pass ({outputs!r},)" if isinstance(outputs, str) else ""
        raise TypeError(f"{caller}: argument 'outputs' must be an iterable of names, not {outputs!r}{remedy}")
    names = tuple(outputs)
    for name in names:
        if name not in OUTPUTS:
            raise ValueError(
                f"{caller}: outputs must be among {', '.join(OUTPUTS)}, got {name!r}; leave it out, the "
                f"log-probability is always there"
            )
    return frozenset(names)


def check_target(caller: Caller, given: LinearArguments) -> None:
    """Refuse targets that are no single class of each position.

    Raises:
        RuntimeError: they are not integers.
        NotImplementedError: there are several ids of each position.
    """
    target = given.target
    if target.is_floating_point():
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; probabilities have no "
            f"single class to score"
        )
    if target.dim() == given.input.dim():
        raise NotImplementedError(
            f"{caller}: several target ids of a position, [..., K], are not supported, got target of shape "
            f"{tuple(target.shape)} for positions of shape {tuple(given.input.shape[:-1])}; call it for each of the K "
            f"ids, with outputs=() for all but one"
        )


def check_kernels_take(caller: Caller, given: LinearArguments, classes: int | None = None) -> None:
    """Refuse what no kernel computes.

    Args:
        caller: who is named in errors.
        given: the arguments.
        classes: of all ranks; None: those of the weight.

    Raises:
        NotImplementedError: another number of dimensions, features or classes.
    """
    reason = reason_for_reference(given, classes) if given.linear_weight.dim() > 1 else None
    if reason is not None:
        raise NotImplementedError(
            f"{caller}: not supported where {reason}; pass the logits of torch.nn.functional.linear to "
            f"nkilib.torch.token_scores"
        )
