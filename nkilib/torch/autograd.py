"""Derivatives: registered with the library for the out-of-place operator, an autograd.Function for the one in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor

from nkilib.torch.operators import BACKWARD, FORWARD
from nkilib.torch.options import LossOptions
from nkilib.torch.results import ForwardResults, Wanted
from nkilib.torch.soft_targets import soft_target_gradients

# The results of the forward that are constants for autograd.
_CONSTANTS: Final = ("position_weight", "maximum", "log_sum", "argmax", "entropy")


class Upstream(NamedTuple):
    """Upstream gradients as the backward operators take them."""

    grad_loss: Tensor
    grad_lse: Tensor | None
    grad_logprob: Tensor | None

    def with_lse(self, more: Tensor) -> Upstream:
        """With ``more`` added to the gradient of lse."""
        return self._replace(grad_lse=more if self.grad_lse is None else self.grad_lse + more)


def upstream_of(maximum: Tensor, grads: tuple[Tensor | None, ...]) -> Upstream | None:
    """Gradients of loss, lse and logprob, the first three of the results; None if there are none at all.

    A compiled graph hands over zeros for what has no gradient, of length 0 for a logprob that there is not.
    """
    grad_loss, grad_lse, grad_logprob = grads[:3]
    if grad_logprob is not None and grad_logprob.shape != maximum.shape:
        grad_logprob = None
    if grad_loss is None and grad_lse is None and grad_logprob is None:
        return None
    return Upstream(torch.zeros_like(maximum) if grad_loss is None else grad_loss, grad_lse, grad_logprob)


def mark_constants(ctx: Any, results: ForwardResults, *others: Tensor) -> None:
    """Tell autograd which of loss, lse and logprob have no derivative, and that ``others`` have none."""
    constants = list(others)
    if results.logprob.shape != results.loss.shape:  # not asked for
        constants.append(results.logprob)
    if not ctx.needs_input_grad[0]:  # the gradient is that of class probabilities
        constants.append(results.lse)
    ctx.mark_non_differentiable(*constants)
    # A result that nobody uses has no gradient; the kernel skips what it is not given.
    ctx.set_materialize_grads(False)


def _save(ctx: Any, inputs: tuple[Any, ...], results: ForwardResults, options: LossOptions) -> None:
    logits, target, class_weight = inputs
    soft = target.is_floating_point()
    # Of class probabilities the backward needs the sum of the factors, and would read them twice to get it.
    target_weight = results.position_weight if soft else None
    ctx.save_for_backward(logits, target, class_weight, results.maximum, results.log_sum, target_weight)
    ctx.options = options
    mark_constants(ctx, results, *(getattr(results, name) for name in _CONSTANTS))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    options = LossOptions(**{name: keyword_only_inputs[name] for name in LossOptions._fields})
    _save(ctx, inputs, ForwardResults(*output), options)


def soft_gradients(
    needs_input_grad: tuple[bool, ...],
    tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor],
    grad_loss: Tensor | None,
    options: LossOptions,
    num_classes: int,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of class probabilities and of class weights, those of them that are asked for.

    Args:
        needs_input_grad: of logits, target and class_weight; the dispatcher leaves out a class_weight of None.
        tensors: logits, target, class_weight, maximum and log_sum.
        grad_loss: upstream gradient.
        options: of the loss.
        num_classes: of the whole vocabulary.
    """
    _, needs_target, needs_weight = (*needs_input_grad, False)[:3]
    if grad_loss is None or not (needs_target or needs_weight):
        return None, None
    logits, target, class_weight, maximum, log_sum = tensors
    apply: Callable[..., Tensor] = _OnceDifferentiable.apply
    once = apply(logits)
    given = (once, target, class_weight, maximum, log_sum)
    return soft_target_gradients(*given, grad_loss, options, num_classes, needs_target, needs_weight)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    logits, target, class_weight, maximum, log_sum, target_weight = ctx.saved_tensors
    upstream = upstream_of(maximum, grads)
    tensors = (logits, target, class_weight, maximum, log_sum)
    others = soft_gradients(ctx.needs_input_grad, tensors, grads[0], ctx.options, logits.shape[1])
    gradient = None
    if upstream is not None and ctx.needs_input_grad[0]:
        gradient = torch.ops.nkilib.cross_entropy_backward(
            logits, target, maximum, log_sum, *upstream, class_weight, target_weight, **ctx.options._asdict()
        )
    return gradient, *others


torch.library.register_autograd(FORWARD, _backward, setup_context=_setup_context)


def _no_second_derivative(ctx: Any, *grads: Tensor | None) -> NoReturn:
    """The backward of a gradient: an error that names what has derivatives of every order."""
    raise NotImplementedError(
        f"{BACKWARD}: the gradient of the loss has no derivative here; for second derivatives use "
        f"torch.nn.functional.cross_entropy"
    )


torch.library.register_autograd(BACKWARD, _no_second_derivative)


class _OnceDifferentiable(torch.autograd.Function):
    """Logits as they are, of a gradient that takes maximum and log_sum for constants: no derivative by the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        return logits.view_as(logits)

    backward = staticmethod(_no_second_derivative)


def refuse_graph_of_inplace() -> None:
    """Refuse ``create_graph=True`` in a backward in place: a gradient without a graph would be taken for a constant."""
    if torch.is_grad_enabled():
        _no_second_derivative(None)


class InplaceCrossEntropy(torch.autograd.Function):
    """The forward operator, whose backward writes the gradient over the logits.

    ``torch.library.register_autograd`` refuses an operator that mutates. The operator declares what it mutates, so the
    version of the logits changes: whoever saved them for a backward of their own gets PyTorch's error.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        options: LossOptions,
        wanted: Wanted,
    ) -> tuple[Tensor, ...]:
        results = ForwardResults(
            *torch.ops.nkilib.cross_entropy_forward(
                logits, target, class_weight, **options._asdict(), **wanted._asdict()
            )
        )
        _save(ctx, (logits, target, class_weight), results, options)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph_of_inplace()
        # A second backward ends here: PyTorch sees that the logits have changed. Tensors are unpacked once: under
        # torch.utils.checkpoint they are there once.
        logits, target, class_weight, maximum, log_sum, target_weight = ctx.saved_tensors
        upstream = upstream_of(maximum, grads)
        tensors = (logits, target, class_weight, maximum, log_sum)  # to be read before the logits are overwritten
        others = soft_gradients(ctx.needs_input_grad, tensors, grads[0], ctx.options, logits.shape[1])
        gradient = None
        if upstream is not None and ctx.needs_input_grad[0]:
            gradient = logits.detach()  # the same memory and version
            torch.ops.nkilib.cross_entropy_backward_(
                gradient, target, maximum, log_sum, *upstream, class_weight, target_weight, **ctx.options._asdict()
            )
        return gradient, *others, None, None
