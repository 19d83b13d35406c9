# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""PyTorch's own samples of its functions and modules, run through ours.

``OpInfo`` and ``ModuleInfo`` of ``torch.testing._internal`` list inputs for every function and module of PyTorch. A
check here calls ours with each of them: the result has PyTorch's shape and type, values and gradients are those of
PyTorch's function in float64 of the very same inputs, and what PyTorch refuses is refused by an error of the same type.

Where ours is meant to differ, a :class:`Difference` says where and why. One that does not differ any more fails, and so
does one that no sample meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SEED = 7


@dataclass(frozen=True)
class Sample:
    """One call: ``function(*args, **kwargs)``.

    Attributes:
        name: for messages: where it is listed, its place there, shapes and keywords.
        dtype: the type of its floating tensors.
        args, kwargs: the arguments of the call; tensors that require grad are those to differentiate by.
        constructor: the arguments of a module's ``__init__``: positional, and by keyword.
    """

    name: str
    dtype: torch.dtype
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    constructor: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    @property
    def leaves(self) -> list[Tensor]:
        """Tensors to differentiate by, in order."""
        return [value for value in _tensors((self.args, self.kwargs)) if value.requires_grad]

    def fresh(self, convert: Callable[[Tensor], Tensor] = lambda tensor: tensor.detach().clone()) -> Sample:
        """The same call with other tensors of the same values, layout and ``requires_grad``."""

        def other(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return convert(value.detach()).requires_grad_(value.requires_grad)

        args, kwargs, constructor = tree_map(other, (self.args, self.kwargs, self.constructor))
        return Sample(self.name, self.dtype, args, kwargs, constructor)

    def doubled(self) -> Sample:
        """The same call with floating tensors, and floating ``dtype=``, in float64."""
        result = self.fresh(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor.clone())
        if isinstance(dtype := self.kwargs.get("dtype"), torch.dtype) and dtype.is_floating_point:
            result.kwargs["dtype"] = torch.float64
        return result


Where = Callable[[Sample], bool]


@dataclass(frozen=True)
class Difference:
    """Where ours is not what PyTorch's is, and documented to be so.

    Attributes:
        reason: why.
        where: a function that tells which samples show it.
        raises: ours refuses it with an error of this type, and PyTorch does not raise that.
        says: the pattern that the message of ours must match.
        result_dtype: ours has this type, and PyTorch's has another.
        like: ours is this function of the same arguments instead of PyTorch's, and PyTorch's own result differs.
    """

    reason: str
    where: Where
    raises: type[Exception] | None = None
    says: str = ""
    result_dtype: torch.dtype | None = None
    like: Callable[..., Tensor] | None = None


@dataclass(frozen=True)
class Budget:
    """The error allowed beside the one rounding of a result to its type, with the reason at the place of use.

    The allowed error of an element is ``u * abs(exact) + (of_type * u + of_float32 * 2^-24) * scale``, with u the
    rounding of the result's type (2^-24 for float32, 2^-8 for bfloat16, 2^-11 for float16) and scale the largest finite
    magnitude, at least 1, of the floating inputs. For a gradient, u in the second term is that of the function's result
    where it is coarser, which a backward may take, and scale is multiplied by that of the upstream gradients.

    A sum or mean is allowed ``of_sum * 2^-24`` of the sum or mean of the magnitudes of its terms more: one for every
    addition that a term passes through, and for the roundings of the term.
    """

    of_type: float = 0.0
    of_float32: float = 8.0
    of_sum: float = 0.0

    def allowed(
        self, exact: Tensor, dtype: torch.dtype, result: torch.dtype, scale: float, terms: float = 0.0
    ) -> Tensor:
        """float64, of the shape of ``exact``, for an element of ``dtype`` from a ``result`` of the function.

        ``terms`` is what the magnitudes of the terms of a sum or mean come to.
        """
        info = torch.finfo(dtype)
        coarser = max(info.eps, torch.finfo(result).eps) / 2
        absolute = (self.of_type * coarser + self.of_float32 * 2.0**-24) * scale + info.smallest_normal * info.eps
        return info.eps / 2 * exact.abs() + absolute + self.of_sum * 2.0**-24 * terms


@dataclass(frozen=True)
class Checked:
    """A function of ours beside PyTorch's.

    Attributes:
        ours: the function, or the class of a module.
        theirs: PyTorch's.
        values, gradients: the error allowed in values, and in gradients.
        differences: the documented ones.
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    values: Budget = field(default_factory=Budget)
    gradients: Budget = field(default_factory=lambda: Budget(of_type=4.0, of_float32=16.0))
    differences: Sequence[Difference] = ()

    def check(self, samples: Sequence[Sample]) -> None:
        """Every sample: values, gradients, types, or the same error.

        Raises:
            AssertionError: naming the sample.
        """
        assert samples, "there are no samples"
        for sample in samples:
            known = [difference for difference in self.differences if difference.where(sample)]
            assert len(known) <= 1, f"{sample.name}: several differences: {[item.reason for item in known]}"
            self._check_one(sample, known[0] if known else None)

    def check_each_difference_is_met(self, samples: Sequence[Sample]) -> None:
        """A difference that no sample shows is superfluous.

        Raises:
            AssertionError: naming it.
        """
        for difference in self.differences:
            assert any(difference.where(sample) for sample in samples), f"no sample shows it: {difference.reason}"

    def check_float64_is_refused(self, samples: Sequence[Sample], remedy: str = r"\.float\(\)") -> None:
        """Every sample, which is in float64, raises TypeError with the remedy.

        Raises:
            AssertionError: naming the sample.
        """
        assert samples and all(sample.dtype == torch.float64 for sample in samples)
        for sample in samples:
            with pytest.raises(TypeError, match=remedy):
                _called(self.ours, sample.fresh())

    def _check_one(self, sample: Sample, known: Difference | None) -> None:
        theirs = _attempted(self.theirs, sample.fresh())
        if known is not None and known.raises is not None:
            assert not isinstance(theirs, known.raises), f"{sample.name}: PyTorch raises it too: {known.reason}"
            with pytest.raises(known.raises, match=known.says):
                _called(self.ours, sample.fresh())
            return
        if isinstance(theirs, Exception):
            self.check_refused(sample, type(theirs))
            return
        exact = _Outcome.of(self.theirs if known is None or known.like is None else known.like, sample.doubled())
        mine = _Outcome.of(self.ours, sample.fresh())
        self._check_type(sample, known, theirs, mine.value)
        self.compare(sample.name, sample, mine, exact)
        if known is not None and known.like is not None:
            with pytest.raises(AssertionError):  # PyTorch's own is another
                self.compare(sample.name, sample, _Outcome.of(self.theirs, sample.fresh()), exact)

    @staticmethod
    def _check_type(sample: Sample, known: Difference | None, theirs: Tensor, mine: Tensor) -> None:
        dtype = theirs.dtype
        if known is not None and known.result_dtype is not None:
            dtype = known.result_dtype
            assert dtype != theirs.dtype, f"{sample.name}: PyTorch's type is that too: {known.reason}"
        assert (mine.shape, mine.dtype) == (theirs.shape, dtype), f"{sample.name}: {mine.shape} of {mine.dtype}"

    def check_refused_alike(self, samples: Sequence[Sample]) -> None:
        """Every sample is refused by PyTorch, and by ours with an error of that type.

        Raises:
            AssertionError: naming the sample.
        """
        for sample in samples:
            theirs = _attempted(self.theirs, sample.fresh())
            assert isinstance(theirs, Exception), f"{sample.name}: PyTorch takes it"
            self.check_refused(sample, type(theirs))

    def check_refused(self, sample: Sample, error: type[Exception]) -> None:
        """Ours raises an error of this type too.

        Raises:
            AssertionError: naming the sample.
        """
        mine = _attempted(self.ours, sample.fresh())
        assert isinstance(mine, error), f"{sample.name}: PyTorch raises {error.__name__}, ours gave {mine!r}"

    def compare(self, name: str, sample: Sample, mine: _Outcome, exact: _Outcome) -> None:
        """Values and gradients within the budgets; a NaN and an infinity stand where they stand in the exact ones.

        Raises:
            AssertionError: naming the sample, and the largest error beside what is allowed.
        """
        scale = _magnitude(_tensors((sample.args, sample.kwargs)))
        terms = 0.0 if self.values.of_sum == 0.0 else _terms(self.theirs, sample, exact.value)
        _check_close(f"{name}: value", mine.value, exact.value, self.values, mine.value.dtype, scale, terms)
        assert len(mine.gradients) == len(exact.gradients) == len(sample.leaves)
        upstream = [exact.upstream] if exact.upstream is not None else []
        steep = scale * _magnitude(upstream)
        pairs = zip(mine.gradients, exact.gradients, sample.leaves, strict=True)
        for at, (gradient, reference, leaf) in enumerate(pairs):
            assert (gradient is None) == (reference is None), f"{name}: gradient {at}: {gradient} and {reference}"
            if gradient is not None and reference is not None:
                assert (gradient.shape, gradient.dtype) == (leaf.shape, leaf.dtype), f"{name}: gradient {at}"
                _check_close(f"{name}: gradient {at}", gradient, reference, self.gradients, mine.value.dtype, steep)


@dataclass(frozen=True)
class _Outcome:
    """A result, and the gradients of what requires grad for an upstream gradient that depends on its shape alone."""

    value: Tensor
    gradients: list[Tensor | None]
    upstream: Tensor | None

    @classmethod
    def of(cls, function: Callable[..., Any], sample: Sample) -> _Outcome:
        value = _called(function, sample)
        leaves = sample.leaves
        if not value.requires_grad:
            return cls(value, [None] * len(leaves), None)
        generator = torch.Generator().manual_seed(_SEED)
        upstream = torch.randn(value.shape, generator=generator).to(sample_dtype(sample)).to(value.dtype)
        gradients = torch.autograd.grad(value, leaves, upstream, allow_unused=True)
        return cls(value.detach(), list(gradients), upstream)


def sample_dtype(sample: Sample) -> torch.dtype:
    """The coarsest type in which an upstream gradient has the same values for every type of the sample."""
    return torch.bfloat16 if sample.dtype != torch.float16 else torch.float16


def call_of(*args: Any, **kwargs: Any) -> Sample:
    """A sample of one's own; its type is that of the first floating tensor, or float32."""
    dtypes = [tensor.dtype for tensor in _tensors((args, kwargs)) if tensor.is_floating_point()]
    return _named(Sample("call", dtypes[0] if dtypes else torch.float32, args, kwargs))


def with_keywords(samples: Sequence[Sample], **keywords: Any) -> tuple[Sample, ...]:
    """The samples with some keywords replaced or added."""
    return tuple(_named(replace(sample, kwargs={**sample.kwargs, **keywords})) for sample in samples)


def with_inputs_of(samples: Sequence[Sample], dtype: torch.dtype) -> tuple[Sample, ...]:
    """The samples with their floating tensors in another type, for functions that PyTorch has in float32 alone."""

    def other(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor.clone()

    return tuple(_named(replace(sample.fresh(other), dtype=dtype)) for sample in samples)


@cache
def op_samples(name: str, dtype: torch.dtype, variant: str = "") -> tuple[Sample, ...]:
    """The samples of an ``OpInfo``.

    Args:
        name: the name in ``OpInfo``: ``"softmax"``, ``"nn.functional.nll_loss"``.
        dtype: the type of the inputs; gradients are asked for where it is floating.
        variant: the name of the variant, such as ``"with_dtype"``.
    """
    info = _op_info(name, variant)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        results = list(info.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point))
    label = f"{name} {variant}".strip()
    return tuple(
        _named(Sample(f"{label} {at}", dtype, (result.input, *result.args), dict(result.kwargs)))
        for at, result in enumerate(results)
    )


@cache
def module_samples(name: str, dtype: torch.dtype) -> tuple[Sample, ...]:
    """The samples of a ``ModuleInfo``; ``name`` is that of the class. Tensors of the constructor have the type too."""
    return tuple(_of_module_info(name, dtype))


def op_errors(name: str, variant: str = "") -> list[tuple[Sample, type[Exception]]]:
    """Calls that PyTorch refuses, with the type of its error; empty where an ``OpInfo`` lists none."""
    info = _op_info(name, variant)
    if info.error_inputs_func is None:
        return []
    results = []
    for at, element in enumerate(info.error_inputs("cpu")):
        inputs = element.sample_input
        sample = Sample(f"error of {name} {at}", inputs.input.dtype, (inputs.input, *inputs.args), dict(inputs.kwargs))
        results.append((_named(sample), element.error_type))
    return results


def module_errors(name: str) -> list[tuple[Sample, type[Exception]]]:
    """Constructors and calls of a module that PyTorch refuses, with the type of its error."""
    info = _module_info(name)
    if info.module_error_inputs_func is None:
        return []
    results = []
    listed = info.module_error_inputs_func(info, "cpu", torch.float32, False, True)
    for at, element in enumerate(listed):
        inputs = element.module_error_input
        built, call = inputs.constructor_input, inputs.forward_input
        args, kwargs = (call.args, call.kwargs) if call is not None else ((), {})
        constructor = (built.args, built.kwargs)
        results.append((Sample(f"error of {name} {at}", torch.float32, args, kwargs, constructor), element.error_type))
    return results


def _of_module_info(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    info = _module_info(name)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        results = info.module_inputs_func(info, "cpu", dtype, dtype.is_floating_point, True)
    for at, result in enumerate(results):
        built, call = result.constructor_input, result.forward_input
        yield _named(Sample(f"{name} {at}", dtype, call.args, dict(call.kwargs), (built.args, built.kwargs)))


def _op_info(name: str, variant: str) -> Any:
    """The ``OpInfo`` of a name; the list is imported here, because it brings torch._dynamo and takes two seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = [entry for entry in op_db if (entry.name, entry.variant_test_name) == (name, variant)]
    return info


def _module_info(name: str) -> Any:
    """The ``ModuleInfo`` of a class, imported here for the same reason."""
    from torch.testing._internal.common_modules import module_db

    (info,) = [item for item in module_db if item.module_cls.__name__ == name]
    return info


def _named(sample: Sample) -> Sample:
    shapes = [tuple(arg.shape) if isinstance(arg, Tensor) else arg for arg in sample.args]
    tensors = {key: tuple(v.shape) if isinstance(v, Tensor) else v for key, v in sample.kwargs.items()}
    listed, *_ = sample.name.split(" of torch.")  # without what an earlier name said
    return replace(sample, name=f"{listed} of {sample.dtype}: {shapes}, {tensors}, {sample.constructor}")


def _called(function: Callable[..., Any], sample: Sample) -> Tensor:
    if isinstance(function, type) and issubclass(function, nn.Module):
        args, kwargs = sample.constructor
        function = function(*args, **kwargs)
    result: Tensor = function(*sample.args, **sample.kwargs)
    return result


def _attempted(function: Callable[..., Any], sample: Sample) -> Any:
    """The result, or the error."""
    try:
        return _called(function, sample)
    except Exception as error:  # of whatever type: that is what is compared
        return error


def _tensors(value: Any) -> list[Tensor]:
    results: list[Tensor] = []
    tree_map(lambda item: results.append(item) if isinstance(item, Tensor) else None, value)
    return results


def _magnitude(tensors: Sequence[Tensor]) -> float:
    floating = [tensor.detach().double() for tensor in tensors if tensor.is_floating_point()]
    finite = [item[item.isfinite()].abs().max().item() for item in floating if bool(item.isfinite().any())]
    return max(1.0, *finite) if finite else 1.0


def _terms(theirs: Callable[..., Any], sample: Sample, exact: Tensor) -> float:
    """Return the total magnitude of the terms of which ``exact`` is the sum or mean; 0 where it is neither."""
    is_module = isinstance(theirs, type)
    reduction = (sample.constructor[1] if is_module else sample.kwargs).get("reduction", "mean")
    if reduction == "none":
        return 0.0
    doubled = sample.doubled()
    if is_module:
        args, options = doubled.constructor
        alone = replace(doubled, constructor=(args, {**options, "reduction": "none"}))
    else:
        alone = replace(doubled, kwargs={**doubled.kwargs, "reduction": "none"})
    item = _called(theirs, alone).detach()
    size, total = item.abs().sum().item(), item.sum().abs().item()
    if total == 0.0:
        return size if reduction == "sum" else size / max(1, item.numel())
    return exact.abs().item() * size / total  # whatever a mean divides by


def _check_close(
    what: str,
    actual: Tensor,
    exact: Tensor,
    budget: Budget,
    result: torch.dtype,
    scale: float,
    terms: float = 0.0,
) -> None:
    got, reference = actual.detach().double(), exact.detach().double()
    assert got.shape == reference.shape, f"{what}: {tuple(got.shape)} and {tuple(reference.shape)}"
    assert torch.equal(got.isnan(), reference.isnan()), f"{what}: NaN stand elsewhere: {got} and {reference}"
    allowed = budget.allowed(reference, actual.dtype, result, scale, terms)
    error = (got - reference).abs()
    is_same = (got == reference) | reference.isnan()  # infinities of one sign among them
    worst = torch.where(is_same, 0.0, error / allowed)
    assert not bool((worst > 1.0).any()), f"{what}: off by {worst.max():.3g} times what is allowed"
