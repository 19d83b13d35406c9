# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A training step of a tiny model of a class, stock and fused, and what came of it.

``python -m tests.torch.lazy_logits.architecture_outcomes CLASS ...`` writes an outcome a line, as JSON. A process for
some classes at a time keeps memory small, and outlives no class that hangs: see :func:`outcomes_of`.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nkilib.torch import fuse_linear_loss, fused_calls
from nkilib.torch.lazy_logits.record import LogitsComputedWarning, Place
from tests.fresh_python import CHECKOUT, with_checkout
from tests.torch.lazy_logits.architectures import batch, tiny_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RIGHT: Final = "right"
COMPUTED: Final = "logits computed"
WRONG: Final = "wrong"
STOCK_FAILS: Final = "stock model fails"
NOT_BUILT: Final = "not built"

# In norm, of the loss and of the gradient of each parameter, in float32.
BUDGET: Final = 1e-5
# Distances from float64 are two draws of rounding errors of one size: in forward and backward of all other layers they
# are the same, and of the output layer and the loss ours has fewer. In a parameter of few numbers errors do not average
# out, and the stock model may have none by luck: such a one may differ by more, and by what all together do.
SHARE: Final = 2.0
SHARE_OF_ONE: Final = 4.0
# Rounding to bfloat16, by which a loss or a gradient in bfloat16 may miss even a result without any other error.
BFLOAT16_UNIT: Final = 2.0**-8
APART: Final = 8 * BFLOAT16_UNIT  # gradients as a whole, from those of the stock model
# A gradient with a smaller share of the norm of all is what is left of larger numbers that cancel, such as that of the
# bias of keys, which softmax does not see; its error is compared with this share.
SMALL: Final = 1e-3
_LONGEST: Final = 160  # of the text of an error
_PROGRAM: Final = (sys.executable, "-m", "tests.torch.lazy_logits.architecture_outcomes")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a class.

    Attributes:
        name: the name of the class.
        result: one of the five above.
        detail: where logits were computed, what is wrong, or the error; empty if all is right.
        figures: differences by what they are of, for a look at them.
    """

    name: str
    result: str
    detail: str = ""
    figures: str = ""


@dataclass(frozen=True)
class ProcessEnd:
    """The standard output of a process, and a clause about its end."""

    output: str
    error: str


@dataclass(frozen=True)
class Step:
    """The loss of a training step, and the gradients of the parameters that have one, by name."""

    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Difference:
    """How far a step is from another: relative, in norm.

    Attributes:
        loss: the difference of the losses.
        whole: the difference of the gradients of all parameters, as one vector.
        gradients: the difference of the gradient of each parameter.
    """

    loss: float
    whole: float
    gradients: dict[str, float]

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max([self.loss, *self.gradients.values()])

    def is_no_further(self, other: Difference, least: float) -> bool:
        """Return whether loss and gradients are no further than those of another step, or than a number."""
        if self.loss > max(least, SHARE * other.loss) or self.whole > max(least, SHARE * other.whole):
            return False
        least = max(least, SHARE * other.whole)
        of_each = ((number, other.gradients.get(name, 0.0)) for name, number in self.gradients.items())
        return all(mine <= max(least, SHARE_OF_ONE * theirs) for mine, theirs in of_each)


class _InFloat64(TorchFunctionMode):
    """Makes casts to float32 in the code of models casts to float64, which all of a reference is computed in."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.float:
            function = Tensor.double
        args = tuple(_widened(item) for item in args)
        return function(*args, **{name: _widened(item) for name, item in (kwargs or {}).items()})


def _widened(item: Any) -> Any:
    return torch.float64 if isinstance(item, torch.dtype) and item.is_floating_point else item


def step_of(model: nn.Module, arguments: dict[str, Any]) -> Step:
    """Return a training step with the loss of the model itself."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    loss = model(**arguments).loss
    if not isinstance(loss, Tensor):
        raise TypeError("the model returns no loss")
    loss.backward()
    named = model.named_parameters()
    gradients = {name: item.grad.double() for name, item in named if item.grad is not None and item.grad.any()}
    return Step(loss.detach().double(), gradients)


def step_in_float64(model: nn.Module, arguments: dict[str, Any]) -> Step:
    """Return the step of a copy of a model in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _InFloat64():
            return step_of(copy.deepcopy(model).double(), arguments)
    finally:
        torch.set_default_dtype(before)


def difference(step: Step, reference: Step) -> Difference:
    """Return how far a step is from a reference.

    Raises:
        ValueError: other parameters have a gradient, or a number is not finite.
    """
    whole = torch.stack([item.norm() for item in reference.gradients.values()]).norm()
    names = set(step.gradients) | set(reference.gradients)
    found = {}
    total = torch.zeros((), dtype=torch.float64)
    for name in sorted(names):
        zero = torch.zeros((), dtype=torch.float64)
        mine, theirs = (each.gradients.get(name, zero) for each in (step, reference))
        apart = (mine - theirs).norm()
        total += apart**2
        found[name] = float(apart / torch.maximum(theirs.norm(), SMALL * whole))
    loss = float((step.loss - reference.loss).abs() / reference.loss.abs())
    result = Difference(loss, float(total.sqrt() / whole), found)
    if not all(number < float("inf") for number in (loss, *found.values())):
        raise ValueError("a loss or a gradient is not finite")
    return result


def outcome_of(name: str) -> Outcome:
    """Return what comes of a class."""
    arguments = batch(name)
    try:
        model = tiny_model(name)
    except Exception as error:
        return Outcome(name, NOT_BUILT, _line(error))
    # A model may keep tensors of a step, which no copy can have.
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    try:
        stock = step_of(model, arguments)
        difference(stock, stock)
    except Exception as error:
        return Outcome(name, STOCK_FAILS, _line(error))
    try:
        outcome = _in_float32(name, model, arguments, stock)
        return outcome if outcome.result == WRONG else in_bfloat16(outcome, narrow, arguments)
    except Exception as error:
        return Outcome(name, WRONG, _line(error))


def _in_float32(name: str, model: PreTrainedModel, arguments: dict[str, Any], stock: Step) -> Outcome:
    """Return what comes of a class whose stock model trains."""
    ours, computed = _fused_step(model, arguments)
    apart = difference(ours, stock)
    figures = f"float32 {apart.largest:.1e}"
    if apart.largest > BUDGET:
        exact = step_in_float64(model, arguments)
        theirs, mine = (difference(step, exact) for step in (stock, ours))
        figures += f" stock {theirs.largest:.1e} ours {mine.largest:.1e}"
        if not mine.is_no_further(theirs, BUDGET):
            return Outcome(name, WRONG, "in float32: further from float64 than the stock model", figures)
    return Outcome(name, COMPUTED if computed else RIGHT, computed, figures)


def in_bfloat16(outcome: Outcome, model: PreTrainedModel, arguments: dict[str, Any]) -> Outcome:
    """Return the outcome of a class that is right in float32, and in bfloat16 if the stock model has such a step."""
    arguments = {key: item.bfloat16() if _is_floating(item) else item for key, item in arguments.items()}
    exact = step_in_float64(model, arguments)
    try:
        stock = step_of(model, arguments)
        theirs = difference(stock, exact)
    except Exception as error:
        detail = outcome.detail or f"in float32; the stock model fails in bfloat16: {_line(error)}"
        return replace(outcome, detail=detail)
    ours, _ = _fused_step(model, arguments)
    mine, apart = difference(ours, exact), difference(ours, stock)
    figures = f"{outcome.figures}, bfloat16 {theirs.whole:.1e} ours {mine.whole:.1e} apart {apart.whole:.1e}"
    # The layers before the output layer may be further from float64 than any error of ours would show.
    if not mine.is_no_further(theirs, BFLOAT16_UNIT) or apart.whole > APART:
        return replace(
            outcome, result=WRONG, detail="in bfloat16: further from float64 than the stock model, or from it"
        )
    return replace(outcome, figures=figures)


def _is_floating(item: Any) -> bool:
    return isinstance(item, Tensor) and item.is_floating_point()


def _fused_step(model: nn.Module, arguments: dict[str, Any]) -> tuple[Step, str]:
    """Return the step of the fused model, and where it computed logits."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            undo = fuse_linear_loss(model, on_compute="ignore")
        except ValueError as error:
            return step_of(model, arguments), _line(error)
    told = [str(item.message) for item in caught if issubclass(item.category, LogitsComputedWarning)]
    with undo:
        step = step_of(model, arguments)
        if told:
            return step, told[0]
        calls = fused_calls(model)
    if not calls.fused and not calls.computed:
        return step, "the loss does not come from a call of the output layer"
    return step, "; ".join(sorted({_where(place) for place in calls.computed}))


def _where(place: Place) -> str:
    """Return a function and the file that called it, from the package on."""
    parts = Path(place.file).parts
    start = len(parts) - 1 - parts[::-1].index("transformers") if "transformers" in parts else len(parts) - 1
    return f"{place.function} in {'/'.join(parts[start:])}"


def _line(error: Exception) -> str:
    """Return the type and the text of an error in a line, cut if it is long."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST else f'{text[:_LONGEST]} ...'}"


def outcomes_of(
    names: Sequence[str],
    tell: Callable[[Outcome], None] = lambda outcome: None,
    program: Sequence[str] = _PROGRAM,
    seconds: float = 120.0,
) -> list[Outcome]:
    """Return the outcomes of classes, computed in a process, and in another one after a class that ends it or hangs.

    Args:
        names: the names of the classes.
        tell: is called with each outcome when its process has ended.
        program: a command that writes the outcomes of its arguments, a line each.
        seconds: how long a process may run, for each of its classes.
    """
    found: list[Outcome] = []
    while len(found) < len(names):
        left = names[len(found) :]
        result = _run([*program, *left], seconds * len(left))
        done = [Outcome(**json.loads(line)) for line in result.output.splitlines() if line.startswith("{")]
        if len(done) < len(left):
            done.append(Outcome(left[len(done)], STOCK_FAILS, result.error))
        for outcome in done:
            tell(outcome)
        found += done
    return found


def _run(command: Sequence[str], seconds: float) -> ProcessEnd:
    """Return what a process wrote, whatever ended it."""
    environment = with_checkout(OMP_NUM_THREADS="1")
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, cwd=CHECKOUT, env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        written = error.stdout or b""
        return ProcessEnd(written.decode() if isinstance(written, bytes) else written, f"no end after {seconds:.0f} s")
    last = ended.stderr.strip().splitlines()[-1:]
    return ProcessEnd(ended.stdout, ": ".join([f"its process ended with {ended.returncode}", *last])[:_LONGEST])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:]:
        print(json.dumps(asdict(outcome_of(each))), flush=True)
