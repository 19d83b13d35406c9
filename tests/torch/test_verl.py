# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.torch.verl`` on modules with the names and signatures of verl 0.9.1, against its formulas in float64.

The modules run on the CPU, by verl's formulas in plain PyTorch: verl itself brings ray, and its kernel runs on CUDA
alone. Its functions are in ``verl/utils/kernel/linear_cross_entropy.py`` and
``verl/utils/experimental/torch_functional.py``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nkilib.torch.verl import _GradientOnFirstRank, fused_linear_for_ppo, install, linear_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, make_logits, make_targets
from tests.torch.telling import GRADIENT_UNITS, LOSS_UNITS, UNIT, assert_telling

KERNEL = "verl.utils.kernel.linear_cross_entropy"
FUSED = "verl.utils.experimental.torch_functional"
BY_NAME = "verl.models.mcore.model_forward_fused"


def scores(hidden: Tensor, weight: Tensor, labels: Tensor, temperature: Any) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy, in the type of the operands."""
    z = hidden @ weight.T / temperature
    logprob = z.log_softmax(-1)
    return logprob.gather(-1, labels[..., None])[..., 0], -(logprob.exp() * logprob).sum(-1)


class LinearCrossEntropy:
    """A class with the arguments of verl's autograd Function; it notes that it ran."""

    calls = 0

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        temperature: float | None = 1.0,
        reduction: str | None = "none",
        dist_process_group: Any = None,
    ) -> tuple[Tensor, Tensor]:
        LinearCrossEntropy.calls += 1
        return scores(hidden.flatten(0, -2), weight, labels.flatten(), temperature)

    @classmethod
    def apply(cls, *args: Any) -> tuple[Tensor, Tensor]:
        """Take arguments by position alone, like ``torch.autograd.Function.apply``."""
        return cls.forward(None, *args)


class FusedLinearForPPO(nn.Module):
    """A module with the arguments of verl's; it notes that it ran."""

    calls = 0

    def __init__(self, chunk_size: int = 512, impl_backend: str = "torch") -> None:
        super().__init__()
        self.chunk_size, self.impl_backend = chunk_size, impl_backend

    def forward(
        self,
        hidden_states: torch.FloatTensor,
        vocab_weights: torch.FloatTensor,
        input_ids: torch.LongTensor,
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        FusedLinearForPPO.calls += 1
        return scores(hidden_states, vocab_weights, input_ids, temperature)


def put_in_place(monkeypatch: pytest.MonkeyPatch, version: str = "0.9.1") -> dict[str, Any]:
    """Make ``import verl`` find these, and one module that has imported the function by name."""
    parents = {".".join(name.split(".")[:n]) for name in (KERNEL, FUSED, BY_NAME) for n in range(1, 5)}
    modules: dict[str, Any] = {name: ModuleType(name) for name in sorted(parents)}
    for name, module in modules.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    modules["verl"].__version__ = version
    # Classes of their own, for what is installed is set on them.
    kernel: Any = type("LinearCrossEntropy", (LinearCrossEntropy,), {})
    module = type("FusedLinearForPPO", (FusedLinearForPPO,), {"forward": FusedLinearForPPO.forward})
    LinearCrossEntropy.calls = FusedLinearForPPO.calls = 0
    modules[KERNEL].LinearCrossEntropy, modules[KERNEL].linear_cross_entropy = kernel, kernel.apply
    modules[FUSED].FusedLinearForPPO = module
    modules[BY_NAME].linear_cross_entropy = modules[KERNEL].linear_cross_entropy
    return modules


# Many tests install for devices that are not here.
pytestmark = pytest.mark.filterwarnings("ignore:.*devices must include 'cpu' where nkilib runs on its simulator")
BATCH, LENGTH, WIDTH, T = 2, 3, 16, 0.8
HIDDEN = make_logits(BATCH, LENGTH, WIDTH, spread=1.0)
WEIGHT = make_logits(CLASSES, WIDTH, seed=4, spread=0.6)
LABELS = make_targets(BATCH, LENGTH)
# Random upstream gradients of both results.
UPSTREAM = make_logits(2, BATCH, LENGTH, seed=5, spread=1.0)


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return put_in_place(monkeypatch)


def leaves(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return HIDDEN.to(dtype, copy=True).requires_grad_(), WEIGHT.to(dtype, copy=True).requires_grad_()


def backward(results: tuple[Tensor, Tensor], hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    upstream = [
        gradient.view(result.shape).to(result.dtype) for gradient, result in zip(UPSTREAM, results, strict=True)
    ]
    return torch.autograd.grad(results, (hidden, weight), upstream)


def assert_scores(
    results: tuple[Tensor, Tensor], hidden: Tensor, weight: Tensor, dtype: torch.dtype, temperature: Any = T
) -> None:
    """Values and gradients of both are the formula's in float64, of operands as rounded as these.

    Tensors of temperatures broadcast to the logits.
    """
    x, w = (array.detach().double().requires_grad_() for array in (hidden, weight))
    exact = scores(x, w, LABELS, temperature)
    for ours, theirs in zip(results, exact, strict=True):
        assert ours.dtype == torch.float32
        assert_telling(ours.detach(), theirs.detach().view(ours.shape), 0.0, LOSS_UNITS * UNIT * 8.0)
    # Sums over 11 classes or 6 positions of products up to 8.
    rounding = 0.0 if dtype == torch.float32 else 2.0**-7
    for ours, theirs in zip(backward(results, hidden, weight), backward(exact, x, w), strict=True):
        assert ours.dtype == dtype
        assert_telling(ours, theirs, rounding, GRADIENT_UNITS * UNIT * 8.0 + rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_gradients_where_a_module_took_the_function_by_name(
    dtype: torch.dtype, verl: dict[str, Any]
) -> None:
    hidden, weight = leaves(dtype)
    with install(devices=("cpu",)):
        result = verl[BY_NAME].linear_cross_entropy(hidden, weight, LABELS, T, "none")
    assert result[0].shape == result[1].shape == (BATCH * LENGTH,) and LinearCrossEntropy.calls == 0
    assert_scores(result, hidden, weight, dtype)  # the backward runs after the undo


@pytest.mark.parametrize("backend", ["torch", "liger"])
def test_scores_and_gradients_of_the_module_whatever_its_backend(backend: str, verl: dict[str, Any]) -> None:
    hidden, weight = leaves()
    module = verl[FUSED].FusedLinearForPPO(impl_backend=backend)
    with install(devices=("cpu",)):
        result = module(hidden, weight, LABELS, temperature=T)
    assert result[0].shape == result[1].shape == LABELS.shape and FusedLinearForPPO.calls == 0
    assert_scores(result, hidden, weight, torch.float32)


def test_reductions_are_of_the_log_probabilities() -> None:
    item, entropy = linear_cross_entropy(HIDDEN, WEIGHT, LABELS, T)
    total, same = linear_cross_entropy(HIDDEN, WEIGHT, LABELS, T, "SUM")
    mean, _ = linear_cross_entropy(HIDDEN, WEIGHT, LABELS, T, "mean")
    assert torch.equal(total, item.sum()) and torch.equal(mean, item.mean()) and torch.equal(same, entropy)
    with pytest.raises(ValueError, match="reduction must be none, sum or mean, got 'max'; pass one"):
        linear_cross_entropy(HIDDEN, WEIGHT, LABELS, T, "max")


def test_all_names_are_put_back_and_those_imported_in_between_too(verl: dict[str, Any]) -> None:
    theirs, forward = verl[KERNEL].linear_cross_entropy, verl[FUSED].FusedLinearForPPO.forward
    undo = install()
    ours = verl[KERNEL].linear_cross_entropy
    assert ours is not theirs and verl[BY_NAME].linear_cross_entropy is ours
    verl["verl.models"].linear_cross_entropy = ours  # imported by name after the installation
    undo()
    undo()
    for name in (KERNEL, BY_NAME, "verl.models"):
        assert verl[name].linear_cross_entropy is theirs
    assert verl[FUSED].FusedLinearForPPO.forward is forward


def test_what_somebody_else_has_replaced_by_then_stays(verl: dict[str, Any]) -> None:
    with install():
        verl[BY_NAME].linear_cross_entropy = verl[FUSED].FusedLinearForPPO.forward = scores
    assert verl[BY_NAME].linear_cross_entropy is verl[FUSED].FusedLinearForPPO.forward is scores
    assert verl[KERNEL].linear_cross_entropy == verl[KERNEL].LinearCrossEntropy.apply


NARROW = (HIDDEN[..., :8], WEIGHT[:, :8])


@pytest.mark.parametrize(
    ("devices", "hidden", "weight", "temperature"),
    [
        pytest.param(("neuron",), HIDDEN, WEIGHT, T, id="another device"),
        pytest.param(("cpu",), HIDDEN.double(), WEIGHT.double(), T, id="float64"),
        pytest.param(("cpu",), *NARROW, T, id="few features"),
        pytest.param(("cpu",), HIDDEN, WEIGHT, torch.tensor(T, requires_grad=True), id="a temperature with gradient"),
        pytest.param(("cpu",), HIDDEN, WEIGHT, torch.full((1, LENGTH, 1), T), id="temperatures of no form of verl"),
    ],
)
def test_what_the_kernels_do_not_take_goes_to_verl(
    devices: tuple[str, ...], hidden: Tensor, weight: Tensor, temperature: Any, verl: dict[str, Any]
) -> None:
    expected, _ = scores(hidden, weight, LABELS, temperature)
    with install(devices):
        module = verl[FUSED].FusedLinearForPPO()
        assert torch.equal(module(hidden, weight, LABELS, temperature)[0], expected)
        if not isinstance(temperature, Tensor):  # verl's function asserts a float
            assert torch.equal(verl[KERNEL].linear_cross_entropy(hidden, weight, LABELS, T)[0], expected.flatten())
            assert LinearCrossEntropy.calls == 1
    assert FusedLinearForPPO.calls == 1


OF_SAMPLES = torch.tensor([0.7, 1.3])
OF_TOKENS = torch.tensor([[0.7, 1.3, 0.9], [2.0, 0.5, 1.1]])
BY_SAMPLE, BY_TOKEN = OF_SAMPLES.view(BATCH, 1, 1).double(), OF_TOKENS.unsqueeze(-1).double()
# Temperatures in the forms of verl, with the float64 ones that broadcast to logits [BATCH, LENGTH, CLASSES]. Engines
# of verl expand [batch] of rollouts to [total_nnz] of packed tokens, and unsqueeze both.
FORMS = {
    "one without dimensions": (torch.tensor(0.75), torch.tensor(0.75)),
    "one, integer": (torch.tensor([2]), torch.tensor(2.0)),
    "one of float64": (torch.tensor([[0.75]], dtype=torch.float64), torch.tensor(0.75)),
    "of samples": (OF_SAMPLES, BY_SAMPLE),
    "of samples, a column": (OF_SAMPLES[:, None], BY_SAMPLE),
    "of samples, beside logits": (OF_SAMPLES[:, None, None], BY_SAMPLE),
    "of tokens": (OF_TOKENS, BY_TOKEN),
    "of tokens, beside logits": (OF_TOKENS[..., None], BY_TOKEN),
    "of tokens, packed": (OF_TOKENS.flatten(), BY_TOKEN),
    "of tokens, packed in a row": (OF_TOKENS.view(1, -1), BY_TOKEN),
    "of tokens, packed beside logits": (OF_TOKENS.view(-1, 1), BY_TOKEN),
    "of bfloat16": (OF_TOKENS.bfloat16(), BY_TOKEN.bfloat16().double()),
}


@pytest.mark.parametrize("form", FORMS)
def test_temperatures_in_the_forms_of_verl(form: str, verl: dict[str, Any]) -> None:
    temperature, beside_logits = FORMS[form]
    hidden, weight = leaves()
    with install(devices=("cpu",)):
        of_function = verl[BY_NAME].linear_cross_entropy(hidden, weight, LABELS, temperature)
        of_module = verl[FUSED].FusedLinearForPPO()(hidden, weight, LABELS, temperature)
    assert LinearCrossEntropy.calls == FusedLinearForPPO.calls == 0
    assert of_function[0].shape == (BATCH * LENGTH,) and of_module[0].shape == LABELS.shape
    assert all(torch.equal(*pair) for pair in zip(of_function, (item.flatten() for item in of_module), strict=True))
    assert_scores(of_module, hidden, weight, torch.float32, beside_logits)


@pytest.mark.parametrize("rows", [(BATCH * LENGTH,), (1, BATCH * LENGTH)])
def test_temperatures_of_packed_hidden_states(rows: tuple[int, ...], verl: dict[str, Any]) -> None:
    hidden, weight = leaves()
    labels = LABELS.view(rows)
    with install(devices=("cpu",)):
        module = verl[FUSED].FusedLinearForPPO()
        packed = hidden.view(*rows, WIDTH)
        flat, *others = [
            module(packed, weight, labels, OF_TOKENS.view(shape)) for shape in ((-1,), (1, -1), rows, (-1, 1))
        ]
    assert FusedLinearForPPO.calls == 0
    assert all(torch.equal(flat[0], other[0]) for other in others)
    assert_scores((flat[0].view(LABELS.shape), flat[1].view(LABELS.shape)), hidden, weight, torch.float32, BY_TOKEN)


def test_temperatures_of_padding_are_finite_and_leave_no_gradient() -> None:
    temperature = OF_TOKENS.clone()
    temperature[:, -1] = 0.0
    hidden, weight = leaves()
    logprob, entropy = fused_linear_for_ppo(hidden, weight, LABELS, temperature)
    assert logprob.isfinite().all() and entropy.isfinite().all()
    expected, _ = fused_linear_for_ppo(hidden, weight, LABELS, OF_TOKENS)
    assert torch.equal(logprob[:, :-1], expected[:, :-1])
    ours, theirs = (torch.autograd.grad(item[:, :-1].sum(), weight)[0] for item in (logprob, expected))
    assert torch.equal(ours, theirs)


def test_other_temperatures_are_refused_by_the_functions() -> None:
    with_gradient, complex_number = OF_SAMPLES.clone().requires_grad_(), torch.tensor(1.0j)
    for temperature in (with_gradient, complex_number, torch.ones(LENGTH, BATCH), torch.ones(CLASSES)):
        for function in (linear_cross_entropy, fused_linear_for_ppo):
            with pytest.raises(
                RuntimeError, match=rf"verl\.{function.__name__}: temperature must be a number or a real"
            ):
                function(HIDDEN, WEIGHT, LABELS, temperature)


def test_a_group_shares_the_vocabulary_and_the_first_rank_has_the_gradient_of_the_sum() -> None:
    hidden = HIDDEN.clone().requires_grad_()
    with two_ranks():
        logprob, entropy = linear_cross_entropy(hidden, WEIGHT, LABELS, T, "none", dist.group.WORLD)
        assert logprob.shape == entropy.shape == (BATCH * LENGTH,)
        (whole,) = torch.autograd.grad(logprob.sum() + entropy.sum(), hidden)
    assert whole.abs().sum() > 0
    (part,) = torch.autograd.grad(_GradientOnFirstRank.apply(hidden, False), hidden, torch.ones_like(hidden))
    assert part.shape == hidden.shape and not part.any()


def test_a_group_of_one_has_all_classes() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        results = linear_cross_entropy(HIDDEN, WEIGHT, LABELS, T, "none", dist.group.WORLD)
    finally:
        dist.destroy_process_group()
    for ours, of_module in zip(results, fused_linear_for_ppo(HIDDEN, WEIGHT, LABELS, T), strict=True):
        assert torch.equal(ours, of_module.flatten())


def test_another_release_is_named_and_other_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = put_in_place(monkeypatch, "0.10.0")
    with pytest.warns(UserWarning, match=r"knows verl 0\.9\.1, got 0\.10\.0; the arguments .* are the same"):
        install()()
    monkeypatch.setattr(modules[FUSED].FusedLinearForPPO, "forward", lambda self, hidden_states, softcap=None: None)
    theirs = modules[KERNEL].linear_cross_entropy
    message = (
        r"FusedLinearForPPO\.forward must be called with \(self, hidden_states, vocab_weights, input_ids, "
        r"temperature=1\.0\), got \(self, hidden_states, softcap=None\); it knows verl 0\.9\.1 and there is 0\.10\.0"
    )
    with pytest.raises(RuntimeError, match=message):
        install()
    assert modules[KERNEL].linear_cross_entropy is theirs


def test_an_installation_without_effect_on_the_simulator_warns(verl: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"^nkilib\.torch\.verl\.install: devices must include 'cpu' .* got 'neuron'"):
        install()()


def test_a_second_installation_and_a_string_of_devices_are_refused(verl: dict[str, Any]) -> None:
    with install(), pytest.raises(ValueError, match="installed already; call the object that it returned first"):
        install()
    with pytest.raises(TypeError, match=r"not 'cpu'; pass \('cpu',\)"):
        install("cpu")
    with pytest.raises(ValueError, match=r"devices must be among neuron, xla, cpu, got 'cuda'"):
        install(("cuda",))
    install()()


def test_without_verl_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl", None)
    with pytest.raises(ModuleNotFoundError, match="verl"):
        install()
