"""What the kernels of several target ids accept beside what all kernels do; refused before anything is written."""

from __future__ import annotations

from nkilib.core.rows.checks import require, require_vector
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear_cross_entropy.options import IDS_MAX, LinearLaunch
from nkilib.nki import nl

_LIKE = "the rows of the input"
_VECTORS = ("maximum", "log_sum", "grad_lse", "entropy", "grad_entropy")
_GRADIENTS = ("grad_logprob", "grad_lse", "grad_entropy")
_PAIRS = (("maximum", "log_sum"), ("entropy", "grad_entropy"))


def validated_ids(function: str, input_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor) -> int:
    """K of targets [N, K].

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    positions, shape = input_hbm.shape[0], tuple(targets_hbm.shape)
    require(
        len(shape) == 2 and shape[0] == positions,
        f"{function}: targets_hbm must have shape ({positions}, K), K target ids for each row of input_hbm, "
        f"got {shape}; pass [N, 1] for one id",
    )
    require(
        1 <= shape[1] <= IDS_MAX,
        f"{function}: targets_hbm must have 1 to {IDS_MAX} target ids for each position, got shape {shape}; "
        f"launch several times for more",
    )
    require(
        targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32, got {targets_hbm.dtype}; cast the targets to int32",
    )
    return shape[1]


def validate_score_upstream(launch: LinearLaunch, upstream: PositionUpstream) -> None:
    """Refuse upstream gradients and statistics that do not fit each other or the positions.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function, positions = launch.function, launch.num_positions
    require_vector(function, "lse_hbm", upstream.lse_hbm, positions, _LIKE)
    for name in _VECTORS:
        vector_hbm = getattr(upstream, f"{name}_hbm")
        if vector_hbm is not None:
            require_vector(function, f"{name}_hbm", vector_hbm, positions, _LIKE)
    gradient_hbm = upstream.grad_logprob_hbm
    if gradient_hbm is not None:
        shape = (positions, launch.ids)
        require(
            tuple(gradient_hbm.shape) == shape,
            f"{function}: grad_logprob_hbm must have the shape of targets_hbm, {shape}, got {gradient_hbm.shape}; "
            f"pass a gradient for each log-probability",
        )
        require(
            gradient_hbm.dtype == nl.float32,
            f"{function}: grad_logprob_hbm must be float32, got {gradient_hbm.dtype}; cast it to float32",
        )
    require(
        any(getattr(upstream, f"{name}_hbm") is not None for name in _GRADIENTS),
        f"{function}: at least one of {', '.join(f'{name}_hbm' for name in _GRADIENTS)} must be a tensor, got none; "
        f"launch nothing where no gradient comes",
    )
    for first, second in _PAIRS:
        have = [getattr(upstream, f"{name}_hbm") is None for name in (first, second)]
        require(
            have[0] == have[1],
            f"{function}: {first}_hbm and {second}_hbm belong together, got one of them; pass both, or neither",
        )
