"""The rows of the registry of losses for the losses of elements."""

from __future__ import annotations

from typing import Final

from nkilib.base.loss_kind import LossKind, ModelledLaunch
from nkilib.core.host.modelled_launches import launched
from nkilib.experimental.loss import elementwise

_SHAPE: Final = (4096, 32128)
_TESTS: Final = ("tests/experimental/loss/elementwise", "tests/torch/functions")
_PAIR: Final = ("input", "target")
_OF_SUM: Final[dict[str, dict[str, tuple[int, ...]]]] = {"float32": {"grad_loss": (1,)}}


def modelled(
    forward: tuple[float, float],
    backward: tuple[float, float],
    tensors: tuple[str, ...] = _PAIR,
    absent: tuple[str, ...] = (),
) -> tuple[ModelledLaunch, ...]:
    """A forward and a backward with a mean, held to their times over the bound in bfloat16 and in float32."""
    given, options = dict.fromkeys(tensors, _SHAPE), {f"{name}_hbm": None for name in absent}
    return (
        launched("forward, mean", True, forward, given, **options),
        launched("backward, mean", False, backward, given, _OF_SUM, **options),
    )


def _of_kl_div() -> tuple[ModelledLaunch, ...]:
    """Of both forms: their losses, and the gradients of the target."""
    given = dict.fromkeys(_PAIR, _SHAPE)
    of_target = {"grad_input_wanted": False, "grad_target_wanted": True}
    return (
        *modelled((1.05, 1.05), (1.05, 1.05)),
        launched("forward, none", True, (1.05, 1.05), given, reduction="none"),
        launched("backward by the target", False, (3.6, 1.95), given, _OF_SUM, **of_target),
        launched("forward, mean, log_target", True, (1.15, 1.05), given, log_target=True),
        launched("backward, mean, log_target", False, (1.05, 1.05), given, _OF_SUM, log_target=True),
        launched(
            "backward by the target, log_target", False, (1.05, 1.05), given, _OF_SUM, log_target=True, **of_target
        ),
    )


KINDS: Final = (
    LossKind(
        name="mse_loss",
        module="MSELoss",
        forward=elementwise.mse_loss_forward,
        backward=elementwise.mse_loss_backward,
        formula="(x - t)^2",
        derivative="2 (x - t)",
        differentiated=("input", "target", "weight"),
        options=("weight",),
        tests=_TESTS,
        launches=modelled((1.05, 1.05), (1.05, 1.05), absent=("weight",)),
    ),
    LossKind(
        name="l1_loss",
        module="L1Loss",
        forward=elementwise.l1_loss_forward,
        backward=elementwise.l1_loss_backward,
        formula="|x - t|",
        derivative="sign(x - t)",
        differentiated=("input", "target", "weight"),
        options=("weight",),
        tests=_TESTS,
        edges="the gradient at 0 and at NaN is 0",
        differences="no complex tensors",
        launches=modelled((1.05, 1.05), (1.05, 1.05), absent=("weight",)),
    ),
    LossKind(
        name="smooth_l1_loss",
        module="SmoothL1Loss",
        forward=elementwise.smooth_l1_loss_forward,
        backward=elementwise.smooth_l1_loss_backward,
        formula="d^2 / (2 beta) up to |d| = beta, |d| - beta / 2 beyond, d = x - t",
        derivative="clip(x - t, -beta, beta) / beta",
        differentiated=("input", "target"),
        options=("beta",),
        tests=_TESTS,
        edges="beta = 0 is l1_loss",
        differences="beta must be finite; one below 2^-126 is 0",
        launches=modelled((1.5, 1.05), (1.05, 1.05)),
    ),
    LossKind(
        name="huber_loss",
        module="HuberLoss",
        forward=elementwise.huber_loss_forward,
        backward=elementwise.huber_loss_backward,
        formula="d^2 / 2 up to |d| = delta, delta (|d| - delta / 2) beyond, d = x - t",
        derivative="clip(x - t, -delta, delta)",
        differentiated=("input", "target", "weight"),
        options=("delta", "weight"),
        tests=_TESTS,
        differences="delta must be finite, and is at least 2^-126",
        launches=modelled((1.5, 1.05), (1.05, 1.05), absent=("weight",)),
    ),
    LossKind(
        name="hinge_embedding_loss",
        module="HingeEmbeddingLoss",
        forward=elementwise.hinge_embedding_loss_forward,
        backward=elementwise.hinge_embedding_loss_backward,
        formula="x where t = 1, max(margin - x, 0) where t = -1, their sum elsewhere",
        derivative="[t != -1] - [t != 1] [x <= margin]",
        differentiated=("input",),
        options=("margin",),
        tests=_TESTS,
        edges="another target than 1 and -1 gives both terms",
        differences="the sum of both terms is max(x, margin), which is margin where x is -inf (PyTorch: NaN); margin "
        "must be finite",
        launches=modelled((1.9, 1.3), (1.05, 1.05)),
    ),
    LossKind(
        name="margin_ranking_loss",
        module="MarginRankingLoss",
        forward=elementwise.margin_ranking_loss_forward,
        backward=elementwise.margin_ranking_loss_backward,
        formula="max(margin - t (x1 - x2), 0)",
        derivative="-t where t (x1 - x2) <= margin, else 0",
        differentiated=("input1", "input2", "target"),
        options=("margin",),
        tests=_TESTS,
        edges="gradients flow where the loss is just 0",
        differences="margin must be finite",
        launches=modelled((1.05, 1.05), (1.05, 1.05), tensors=("input1", "input2", "target")),
    ),
    LossKind(
        name="binary_cross_entropy",
        module="BCELoss",
        forward=elementwise.binary_cross_entropy_forward,
        backward=elementwise.binary_cross_entropy_backward,
        formula="-(t log x + (1 - t) log(1 - x))",
        derivative="(x - t) / max(x (1 - x), 1e-12)",
        differentiated=("input", "target"),
        options=("weight",),
        tests=_TESTS,
        edges="logarithms are at least -100",
        differences="a subnormal probability may count as 0, or nearly so; "
        "the gradient of the target is finite at x = 0 and x = 1",
        launches=modelled((3.8, 2.65), (1.65, 1.05), absent=("weight",)),
    ),
    LossKind(
        name="binary_cross_entropy_with_logits",
        module="BCEWithLogitsLoss",
        forward=elementwise.binary_cross_entropy_with_logits_forward,
        backward=elementwise.binary_cross_entropy_with_logits_backward,
        formula="(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))",
        derivative="sigmoid(x) - t; (1 - t) - (1 + (p - 1) t) sigmoid(-x)",
        differentiated=("input", "target"),
        options=("weight", "pos_weight"),
        tests=_TESTS,
        edges="infinite logits as PyTorch, but for x = -inf, t = 1, where the loss is infinite and not NaN",
        differences="confident logits keep their loss: at x = -20, t = 0 it is 2.06e-9, where PyTorch's float32 has 0",
        launches=modelled((1.32, 1.35), (1.05, 1.05), absent=("weight", "pos_weight")),
    ),
    LossKind(
        name="poisson_nll_loss",
        module="PoissonNLLLoss",
        forward=elementwise.poisson_nll_loss_forward,
        backward=elementwise.poisson_nll_loss_backward,
        formula="exp(x) - t x; x - t log(x + eps) without log_input",
        derivative="exp(x) - t; 1 - t / (x + eps)",
        differentiated=("input", "target"),
        options=("log_input", "full", "eps"),
        tests=_TESTS,
        edges="full counts where t > 1",
        differences="eps is at least 2^-64; with full the gradient of a target of at most 1 has no NaN",
        launches=modelled((1.05, 1.05), (1.05, 1.05)),
    ),
    LossKind(
        name="gaussian_nll_loss",
        module="GaussianNLLLoss",
        forward=elementwise.gaussian_nll_loss_forward,
        backward=elementwise.gaussian_nll_loss_backward,
        formula="(log v + (x - t)^2 / v) / 2, v = max(var, eps)",
        derivative="(x - t) / v",
        differentiated=("input", "target", "var"),
        options=("full", "eps"),
        tests=_TESTS,
        edges="the gradient of the variance is that of v",
        differences="eps is at least 2^-64",
        launches=modelled((1.7, 1.05), (1.3, 1.05), tensors=("input", "target", "var")),
    ),
    LossKind(
        name="kl_div",
        module="KLDivLoss",
        forward=elementwise.kl_div_forward,
        backward=elementwise.kl_div_backward,
        formula="t (log t - x); exp(t) (t - x) with log_target",
        derivative="-t; -exp(t)",
        differentiated=("input", "target"),
        options=("log_target",),
        tests=("tests/experimental/loss/elementwise", "tests/torch/functions"),
        edges="t = 0 gives 0, or NaN where x is infinite",
        differences="no warning of a mean; log t is log(t + 2^-64)",
        launches=_of_kl_div(),
    ),
)
