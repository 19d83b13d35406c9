# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``fuse_linear_loss``: the output layer of any model returns logits that are computed only if something needs them.

:func:`fuse_linear_loss` replaces the forward of the layer by :class:`FusedHead`, and :class:`Undo` restores it.
:func:`_find_output_layer` finds the layer in a model. :func:`fused_calls` returns the record of functions that ran
without logits. A *fused* layer is one whose forward was replaced.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

import nkilib.torch.lazy_logits.consumers  # noqa: F401  registers what kernels compute
from nkilib.base.deprecation import Deprecation
from nkilib.core.host.options import NoKeywords, check_flags, hides_unknown, refuse_unknown
from nkilib.experimental.loss.linear.launch import CLASSES_MAX, FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.checks import autocast_dtype
from nkilib.torch.dispatch.devices import SUPPORTED_DEVICES
from nkilib.torch.dispatch.dtensors import dtensor
from nkilib.torch.dispatch.operator import FLOAT_DTYPES
from nkilib.torch.functions.cross_entropy.checks import checked_options
from nkilib.torch.functions.linear_cross_entropy.checks import check_memory_limit
from nkilib.torch.functions.output_layer import class_before_sharding, has_only_hooks_of_fsdp, is_fully_sharded
from nkilib.torch.lazy_logits.form import Form, Placed, Term
from nkilib.torch.lazy_logits.logits import CALLER, HeadCall, LazyLogits, Mode, versions_of
from nkilib.torch.lazy_logits.record import CHOICES, FUSE, FusedCalls, FusedOptions, LogitsComputedWarning

# The attributes of a layer that are set while it is fused. The second is what torch calls around the forward.
_FORWARD: Final = "forward"
_CALL: Final = "_call_impl"
_HEAD_REMEDY: Final = "pass head=, the output layer or its path in the model, such as 'lm_head'"
_SKIP_LOGITS: Final = Deprecation(
    "the argument skip_logits of a fused model",
    since="0.3",
    removed_in="0.5",
    instead="leave it out: logits are computed where something needs them",
)


def _parameters_of(layer: nn.Linear) -> tuple[Tensor, ...]:
    """Return views of weight and bias, or the parameters themselves under ``fully_shard``.

    A view has an autograd graph that leads to its parameter, which code that follows the graph of an output needs.
    """
    parameters = (layer.weight,) if layer.bias is None else (layer.weight, layer.bias)
    return parameters if is_fully_sharded(layer) else tuple(parameter.view_as(parameter) for parameter in parameters)


def _dtype_of_logits(layer: nn.Linear, hidden: Tensor) -> torch.dtype:
    """Return the dtype of the layer's result: that of autocast, of the policy of ``fully_shard``, or of ``hidden``."""
    autocast = autocast_dtype(hidden.device)
    if autocast is not None:
        return autocast
    if not is_fully_sharded(layer):
        return hidden.dtype
    policy = cast(Any, layer)._get_fsdp_state()._mp_policy
    return policy.output_dtype or policy.param_dtype or hidden.dtype


def _reason_for_logits(layer: nn.Linear, hidden: Tensor) -> str | None:
    """Return the reason why no kernel multiplies these hidden states by this layer, as a clause; None if a kernel does.

    :meth:`FusedHead.reason_for_logits` considers the number of features too.
    """
    classes, dtypes = _sizes_of(layer)[0], (hidden.dtype, layer.weight.dtype)
    if hidden.device.type not in SUPPORTED_DEVICES:
        return f"no kernel runs on {hidden.device.type}"
    if hidden.dim() < 2 or hidden.numel() == 0:
        return f"its input has shape {tuple(hidden.shape)}"
    if classes > CLASSES_MAX:
        return f"there are {classes} classes, and the kernels take {CLASSES_MAX} at most"
    is_cast = autocast_dtype(hidden.device) is not None or is_fully_sharded(layer)
    if not set(dtypes) <= set(FLOAT_DTYPES) or not (is_cast or dtypes[0] == dtypes[1]):
        return f"its input is {dtypes[0]} and its weight {dtypes[1]}"
    is_distributed = dtensor(hidden) is not None or (dtensor(layer.weight) is not None and not is_fully_sharded(layer))
    if is_distributed and (torch.compiler.is_compiling() or not _is_spread_by_classes(layer, hidden)):
        return (
            "its input or its weight is a DTensor; nkilib.torch.vocab_parallel_linear_cross_entropy takes hidden "
            "states and the rows of each rank"
        )
    if any(hasattr(parameter, "ds_status") for parameter in layer.parameters()):
        return "ZeRO-3 of DeepSpeed shards the weight"
    if is_fully_sharded(layer) and not has_only_hooks_of_fsdp(layer):
        return "fully_shard got it alone, and it has hooks of others, which would not run"
    return None


def _is_spread_by_classes(layer: nn.Linear, hidden: Tensor) -> bool:
    """Return whether each rank of a mesh of one dimension has all hidden states and a part of the classes.

    PyTorch's ``ColwiseParallel`` places an output layer in this way.
    """
    placed, parameters = dtensor(hidden), [dtensor(parameter) for parameter in layer.parameters()]
    if placed is None or is_fully_sharded(layer) or len(placed.placements) != 1:
        return False
    is_of_classes = all(
        item is not None and item.device_mesh == placed.device_mesh and item.placements[0].is_shard(0)
        for item in parameters
    )
    return is_of_classes and placed.placements[0].is_replicate() and layer.weight.shape[0] == layer.out_features


@dataclass(eq=False)
class FusedHead:
    """The forward of a fused output layer.

    A copy of the model, and a model from a pickle, has its own FusedHead, which calls the copied layer.

    Attributes:
        layer: the output layer, a ``torch.nn.Linear``.
        options: the options of ``fuse_linear_loss``, and the record of the layer.
        is_adapter: whether the layer is an adapter, whose results are added to those of another fused layer. One kernel
            computes both products, so an adapter may have fewer features than kernels take alone.
        skip_logits: whether the next call returns lazy logits; None means that training and the option ``evaluation``
            decide.
        was_called: whether the forward returned plain logits, outside of ``torch.compile``, since
            :class:`_TellsOfOther` last read this flag.
    """

    layer: nn.Linear
    options: FusedOptions
    is_adapter: bool = False
    skip_logits: bool | None = None
    was_called: bool = False

    def __call__(self, input: Tensor) -> Tensor | LazyLogits:
        """Return lazy logits for hidden states; plain logits if no kernel takes the operands or :meth:`is_asked` is
        false.
        """
        is_asked = self.is_asked()
        reason = self.reason_for_logits(input) if is_asked else None
        if is_asked and reason is None:
            return self.lazy_logits(input)
        self.skip_logits = None
        if not torch.compiler.is_compiling():
            self.was_called = True
        if is_asked:
            positions = input.numel() // max(1, input.shape[-1])
            num_bytes = positions * _sizes_of(self.layer)[0] * input.element_size()
            self.options.tell(f"the output layer ({reason})", num_bytes, self.layer.training)
        return class_before_sharding(self.layer).forward(self.layer, input)

    def is_asked(self) -> bool:
        """Return whether the next call should return lazy logits.

        ``skip_logits`` decides, unless it is None or :func:`_is_traced` returns True; then :func:`_is_wanted` decides.
        """
        if self.skip_logits is not None and not _is_traced():
            return self.skip_logits
        return _is_wanted(self.options, self.layer)

    def reason_for_logits(self, hidden: Tensor) -> str | None:
        """Return the reason why no kernel multiplies these hidden states by this layer, as a clause; None if a
        kernel does.
        """
        _, features = _sizes_of(self.layer)
        if not FEATURES_MIN <= features <= FEATURES_MAX and not self.is_adapter:
            return f"there are {features} features, and the kernels take {FEATURES_MIN} to {FEATURES_MAX}"
        return _reason_for_logits(self.layer, hidden)

    def lazy_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the lazy logits of hidden states, and reset ``skip_logits`` to None, since it is for one call only."""
        self.skip_logits = None
        layer = self.layer
        term = Term(hidden, layer, _parameters_of(layer))
        versions = None if torch.compiler.is_compiling() else versions_of(term)
        form = Form((term,), hidden.dim() - 1, _sizes_of(layer)[0], _dtype_of_logits(layer, hidden))
        placed = dtensor(hidden)
        if placed is not None:
            local = replace(term, hidden=placed.to_local(), mesh=placed.device_mesh)
            form = replace(form, terms=(local,), placed=Placed.SPREAD)
        return LazyLogits(form, HeadCall(self.options, term, Mode.current(hidden.device), versions))


@dataclass(eq=False)
class _Call:
    """The replacement for ``__call__`` of a fused output layer, which runs the layer's hooks and its forward.

    If ``fully_shard`` was applied to the layer alone and the result is lazy logits, the hooks are skipped: they would
    gather weights that the call does not need.
    """

    head: FusedHead

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        head, layer = self.head, self.head.layer
        is_of_hidden = is_fully_sharded(layer) and len(args) == 1 and not kwargs
        if is_of_hidden and head.is_asked() and head.reason_for_logits(args[0]) is None:
            return head.lazy_logits(args[0])
        return nn.Module._call_impl(layer, *args, **kwargs)  # type: ignore[no-untyped-call]


@dataclass(eq=False)
class _TellsOfOther:
    """A forward hook of an output layer that is not fused itself, but should contain fused layers.

    If the output layer returns logits that no fused layer computed, the hook records that, and warns or raises an error
    as ``on_compute`` says. Some adapters of PEFT return such logits, and so does a layer that replaced the fused one.
    """

    options: FusedOptions

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        heads = fused_heads(module)
        was_called = any(head.was_called for head in heads)
        for head in heads:
            head.was_called = False
        if isinstance(output, Tensor) and not was_called and _is_wanted(self.options, module):
            reason = f"{type(module).__name__}, which multiplies by another weight than the fused one"
            self.options.tell(f"the output layer ({reason})", output.nbytes, module.training)


def _watch(layer: object, options: FusedOptions) -> None:
    if not isinstance(layer, nn.Module) or isinstance(vars(layer).get(_FORWARD), FusedHead):
        return
    if not any(isinstance(hook, _TellsOfOther) for hook in layer._forward_hooks.values()):
        layer.register_forward_hook(_TellsOfOther(options))


@dataclass(eq=False)
class _TakesSkipLogits:
    """A hook before the forward of the model.

    The hook takes the argument ``skip_logits`` of earlier releases out of a call, and passes it on to ``heads``. If the
    model's output layer is no longer the fused one, the hook adds a :class:`_TellsOfOther` to it.

    Attributes:
        heads: the forwards of the fused layers.
        is_known: whether the fused layer is the one that the model's ``get_output_embeddings()`` returns.
    """

    heads: list[FusedHead]
    is_known: bool

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if self.is_known and not torch.compiler.is_compiling():
            _watch(_known_layer(module), self.heads[0].options)
        if "skip_logits" not in kwargs:
            return None
        _SKIP_LOGITS.warn()
        kwargs = dict(kwargs)
        skip_logits = kwargs.pop("skip_logits")
        for head in self.heads:
            head.skip_logits = skip_logits
        return args, kwargs


def _known_layer(model: nn.Module) -> object:
    get = getattr(model, "get_output_embeddings", None)
    return get() if callable(get) else None


def _sizes_of(layer: nn.Linear) -> tuple[int, int]:
    """Return the numbers of classes and features of a layer: the sizes of its weight, because a layer that PEFT ties to
    embeddings has swapped attributes. If the weight is a shard without two dimensions, return the layer's attributes.
    """
    shape = layer.weight.shape
    return (shape[0], shape[1]) if len(shape) == 2 else (layer.out_features, layer.in_features)


def _is_wanted(options: FusedOptions, layer: nn.Module) -> bool:
    """Return whether a call of an output layer should return lazy logits if a kernel takes the operands.

    It should in training with gradients enabled; with the option ``evaluation``, always. It never should while
    :func:`_is_traced` returns True.
    """
    return not _is_traced() and (options.evaluation or (layer.training and torch.is_grad_enabled()))


def _is_traced() -> bool:
    """Return whether ``torch.export``, ``torch.jit`` or a function of ``torch.func`` is running, for which kernels have
    no rules.
    """
    if torch.compiler.is_exporting():
        return True
    if torch.compiler.is_compiling():
        return False
    return torch._C._is_tracing() or torch._C._are_functorch_transforms_active()


def fused_heads(model: nn.Module) -> list[FusedHead]:
    """Return the forwards (:class:`FusedHead`) of the fused layers of a model."""
    found = (vars(module).get(_FORWARD) for module in model.modules())
    return [head for head in found if isinstance(head, FusedHead)]


@hides_unknown
def fused_calls(model: nn.Module, **unknown: Unpack[NoKeywords]) -> FusedCalls:
    """Return the record of a fused model: the functions that ran without logits, and the places where logits were
    computed.

    Raises:
        ValueError: the model is not fused.
    """
    if unknown:
        refuse_unknown(fused_calls, unknown)
    heads = fused_heads(model)
    if not heads:
        raise ValueError(f"fused_calls: model must be fused, got {type(model).__name__}; call {FUSE}(model) before")
    # The layers of an output layer share their options, and a model may hold several models that were fused.
    calls = {id(head.options): head.options.calls for head in heads}
    return FusedCalls.of_all(calls.values())


class Undo:
    """The reverse of :func:`fuse_linear_loss`: it makes the output layer return plain logits again, when it is called
    or at the end of a ``with`` block.

    A second call does nothing. A deep copy of a fused model is fused too, and ``Undo(copy)()`` restores it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self) -> None:
        for module in self._model.modules():
            if isinstance(vars(module).get(_FORWARD), FusedHead):
                del module.forward
                vars(module).pop(_CALL, None)
            for key, hook in list(module._forward_pre_hooks.items()):
                if isinstance(hook, _TakesSkipLogits):
                    del module._forward_pre_hooks[key]
                    module._forward_pre_hooks_with_kwargs.pop(key, None)
            for key, after in list(module._forward_hooks.items()):
                if isinstance(after, _TellsOfOther):
                    del module._forward_hooks[key]

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def _is_plain(module: nn.Module) -> bool:
    """Return whether a layer is a plain ``torch.nn.Linear``, whose forward is neither overridden nor replaced."""
    kind = class_before_sharding(module)
    is_linear = issubclass(kind, nn.Linear) and kind.forward is nn.Linear.forward
    return is_linear and _FORWARD not in vars(module)


def _linear_layers(output_layer: nn.Module) -> list[nn.Linear]:
    """Return the layers whose results are the logits: the output layer itself, or the layers whose results PEFT's
    wrapper adds.

    If there are none, return an empty list and warn that the model computes logits.
    """
    get_base = getattr(output_layer, "get_base_layer", None)
    base = get_base() if callable(get_base) else output_layer
    layers = [cast("nn.Linear", module) for module in output_layer.modules() if _is_plain(module)]
    classes = max((_sizes_of(layer)[0] for layer in layers), default=0)
    is_other = not layers or (isinstance(base, nn.Linear) and not _is_plain(base))
    if is_other or (base is not output_layer and not isinstance(base, nn.Linear)):
        kind = class_before_sharding(base)
        state = " with a forward of its own" if _FORWARD in vars(base) else ""
        warnings.warn(
            f"{FUSE}: the output layer must be a torch.nn.Linear, or PEFT's wrapper around one, got "
            f"{kind.__module__}.{kind.__qualname__}{state}, whose logits are computed as before; {_HEAD_REMEDY}",
            LogitsComputedWarning,
            stacklevel=4,
        )
        return []
    return [layer for layer in layers if _sizes_of(layer)[0] == classes]


def _likely_head(model: nn.Module) -> str:
    sizes = {name: layer.out_features for name, layer in model.named_modules() if name and isinstance(layer, nn.Linear)}
    return f"; its widest linear layer is {max(sizes, key=lambda name: sizes[name])!r}" if sizes else ""


def _embeddings_of(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the innermost model with ``get_output_embeddings()``, and the output layer that this method returns.

    A model inside another one is skipped if the outer one has a different output layer.
    """
    found: dict[nn.Module, nn.Module] = {}
    inside: set[nn.Module] = set()  # of models that know a layer
    for module in model.modules():
        layer = _known_layer(module)
        if isinstance(layer, nn.Module) and (layer in found or module not in inside):
            found[layer] = module
            inside.update(module.modules())
    if len(found) != 1:
        raise ValueError(
            f"{FUSE}: model must have one output layer, which get_output_embeddings() returns, got {len(found)} in "
            f"{type(model).__name__}; {_HEAD_REMEDY}{_likely_head(model)}"
        )
    ((layer, owner),) = found.items()
    return owner, layer


def _find_output_layer(model: nn.Module, head: str | nn.Module | None) -> tuple[nn.Module, nn.Module]:
    """Return the model that owns the output layer, and the layer.

    Raises:
        TypeError: ``head`` is neither a path nor a module.
        ValueError: there is no such layer in the model, or there are several.
    """
    if head is None:
        return _embeddings_of(model)
    if isinstance(head, str):
        try:
            return model, model.get_submodule(head)
        except AttributeError as error:
            raise ValueError(
                f"{FUSE}: head must be the path of a module, got {head!r}: {error}{_likely_head(model)}"
            ) from None
    if not isinstance(head, nn.Module):
        raise TypeError(f"{FUSE}: argument 'head' must be str or torch.nn.Module, not {type(head).__name__}")
    if not any(module is head for module in model.modules()):
        raise ValueError(
            f"{FUSE}: head must be a module of the model, got another {type(head).__name__}; {_HEAD_REMEDY}"
        )
    return model, head


@hides_unknown
def fuse_linear_loss(
    model: nn.Module,
    *,
    head: str | nn.Module | None = None,
    evaluation: bool = False,
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    memory_limit: int | None = None,
    on_compute: str = "warn",
    **unknown: Unpack[NoKeywords],
) -> Undo:
    """Make the output layer of a model return logits that are not computed until something needs them.

    In training the layer then returns :class:`LazyLogits` in place of a tensor. The rest is the model's code and yours:
    shifts, selections of positions, scales, soft caps, temperatures and casts are recorded. Where the object reaches a
    loss, a kernel computes the loss from hidden states and weights, with no logits in memory. Kernels compute::

        F.cross_entropy(logits, target)   nn.CrossEntropyLoss   F.nll_loss(logits.log_softmax(-1), target)
        logits.log_softmax(-1).gather(-1, ids)   logits.gather(-1, ids)   logits.logsumexp(-1)   logits.argmax(-1)
        logits.max(-1)   logits.mean(-1)   log_softmax(...).sum(-1)   log_softmax(...).mean(-1)
        -(p * p.log()) .sum(-1) of p, the softmax or the exponential of the log-softmax
        F.kl_div(logits.log_softmax(-1), of_teacher.log_softmax(-1), log_target=True)   of two fused models

    Logits may be divided by a tensor of temperatures from 1e-6 to 1e6, one for all positions or one for each. With
    another value, the CPU computes the logits, or raises an error in a graph of ``torch.compile``; on devices no value
    is read, and the results of the position are NaN.

    Everything else computes the logits as the unfused layer would, and continues with them: results are always those of
    the unfused model, and only the memory is not saved. A warning names the function and its place, once for each
    place; :func:`fused_calls` lists all. Results of kernels are computed in float32 and rounded to the dtype of the
    unfused model's results. After ``model.eval()``, under ``torch.no_grad()``, in ``torch.export`` and ``torch.func``,
    the layer returns logits.

    Each function that runs a kernel multiplies hidden states and weights once in the forward: a loss and an accuracy
    are two launches. ``gather`` and ``logsumexp`` of the same object are one.

    Args:
        model: any module; ``torch.nn.parallel``, ``fully_shard``, ``peft`` and ``accelerate`` may wrap it before or
            after, and ``ColwiseParallel`` may shard its output layer.
        head: the output layer, or its path in the model; None: what ``get_output_embeddings()`` returns. It must be a
            ``torch.nn.Linear``, or PEFT's wrapper around one.
        evaluation: return lazy logits after ``model.eval()`` and under ``torch.no_grad()`` too.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes, in every cross-entropy of
            the training.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss), in these cross-entropies too.
        memory_limit: the bytes that a single launch for loss and gradients may use beside its inputs, in every
            cross-entropy (:func:`nkilib.torch.linear_cross_entropy`); None: gradients are computed in the backward.
        on_compute: ``"warn"``, ``"ignore"`` or ``"raise"``: what happens where logits are computed in training.

    Returns:
        An object that undoes the change: call it, or use it in a ``with`` statement.

    Raises:
        TypeError: ``model`` is no module, ``head`` is neither path nor module, or another argument has the wrong type.
        ValueError: the model has been fused already; it has several output layers, or none was found; another
            ``on_compute``; ``lse_square_scale`` or ``memory_limit`` out of range.
        RuntimeError: ``label_smoothing`` is out of range; or, where logits have to be computed, ``on_compute`` is
            ``"raise"``, ``label_smoothing`` or ``lse_square_scale`` is not 0, or the weights have changed since.

    Source: arXiv 2410.10989 (Liger Kernel) and 2411.09009 (Cut Your Losses) fuse output layer and loss in the same way.
    """
    if unknown:
        refuse_unknown(fuse_linear_loss, unknown)
    check_flags(FUSE, evaluation=evaluation)
    recipe = checked_options(
        CALLER, fuse_linear_loss, label_smoothing=label_smoothing, lse_square_scale=lse_square_scale
    )
    check_memory_limit(CALLER, memory_limit)
    if on_compute not in CHOICES:
        raise ValueError(
            f"{FUSE}: on_compute must be one of {', '.join(CHOICES)}, got {on_compute!r}; pass one of them"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"{FUSE}: argument 'model' must be torch.nn.Module, not {type(model).__name__}; pass a model")
    if fused_heads(model):
        raise ValueError(
            f"{FUSE}: model has been fused already; undo it by the object that {FUSE} returned, or Undo(model)()"
        )
    owner, output_layer = _find_output_layer(model, head)
    options = FusedOptions(evaluation, recipe["label_smoothing"], recipe["lse_square_scale"], memory_limit, on_compute)
    layers = _linear_layers(output_layer)
    heads = [FusedHead(layer, options, len(layers) > 1 and _sizes_of(layer)[1] < FEATURES_MIN) for layer in layers]
    for fused in heads:
        fused.layer.forward = fused  # type: ignore[method-assign, assignment]
        fused.layer._call_impl = _Call(fused)  # type: ignore[method-assign]
    if heads:
        hook = _TakesSkipLogits(heads, _known_layer(owner) is output_layer)
        owner.register_forward_pre_hook(hook, with_kwargs=True)
        _watch(output_layer, options)
    return Undo(model)
