"""The custom operators ``torch.ops.nkilib.cross_entropy_*``: schemas, shapes, and one implementation for each device.

- CPU: the simulator, on two simulated cores; tensors go in and come out without a copy.
- XLA (torch-neuronx) and PrivateUse1 (the native device ``neuron``): the kernels, launched on the cores of
  ``NEURON_LOGICAL_NC_CONFIG``. Neither has run on hardware.
- Every other device: NotImplementedError.

Rows are positions: logits [N, V], targets [N] of any integer type or class probabilities [N, V]. The semantics of
PyTorch's shapes and reductions are in :mod:`nkilib.torch.functional`, derivatives in :mod:`nkilib.torch.autograd`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.torch import devices
from nkilib.torch.caller import CROSS_ENTROPY, VOCAB_PARALLEL
from nkilib.torch.launch import TILE_DTYPES, launch_backward, launch_forward, launch_statistics
from nkilib.torch.options import WHOLE, Columns, LossOptions
from nkilib.torch.results import ForwardResults, ShardStatistics, Wanted, empty_statistics, zero_results
from nkilib.torch.target_indices import check_range

FORWARD: Final = "nkilib::cross_entropy_forward"
STATISTICS: Final = "nkilib::cross_entropy_shard_statistics"
BACKWARD: Final = "nkilib::cross_entropy_backward"
BACKWARD_INPLACE: Final = "nkilib::cross_entropy_backward_"

_STATISTICS_OPTIONS: Final = "int ignore_index=-100, float label_smoothing=0.0, float? logit_softcap=None"
_OPTIONS: Final = f"{_STATISTICS_OPTIONS}, float lse_square_scale=0.0"
_GRADIENTS: Final = (
    "Tensor target, Tensor maximum, Tensor log_sum, Tensor grad_loss, Tensor? grad_lse=None, "
    "Tensor? grad_logprob=None, Tensor? class_weight=None, Tensor? target_weight=None"
)
# Which classes the columns are, of a vocabulary in shards. Then maximum, log_sum, and what else comes from a sum over
# classes, are those of all.
_COLUMNS: Final = "int first_class=0, int? num_classes=None"
_BACKWARD_OPTIONS: Final = f"{_OPTIONS}, {_COLUMNS}, float? weight_sum=None"
_SCHEMAS: Final = {
    FORWARD: f"(Tensor logits, Tensor target, Tensor? class_weight=None, *, {_OPTIONS}, bool with_logprob=False, "
    "bool with_argmax=False, bool with_entropy=False) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    STATISTICS: f"(Tensor logits, Tensor target, Tensor? class_weight=None, *, {_STATISTICS_OPTIONS}, {_COLUMNS}, "
    "bool with_distance_sum=False, bool with_argmax=False, bool with_entropy=False) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    BACKWARD: f"(Tensor logits, {_GRADIENTS}, *, {_BACKWARD_OPTIONS}) -> Tensor",
    BACKWARD_INPLACE: f"(Tensor(a!) logits, {_GRADIENTS}, *, {_BACKWARD_OPTIONS}) -> ()",
}


class _Place(NamedTuple):
    """A kind of device: what it refuses of (logits, target, ignore_index, columns), and on how many cores it runs."""

    check: Callable[[Tensor, Tensor, int, Columns], None]
    cores: Callable[[], int]


def _check_cpu(logits: Tensor, target: Tensor, ignore_index: int, columns: Columns) -> None:
    devices.check_simulator("nkilib.torch")
    caller = CROSS_ENTROPY if columns.num_classes is None else VOCAB_PARALLEL
    check_range(str(caller), target, ignore_index, columns.vocabulary(logits))


def _check_neuron(logits: Tensor, target: Tensor, ignore_index: int, columns: Columns) -> None:
    devices.check_neuron("nkilib.torch", logits.device)


_CPU: Final = _Place(_check_cpu, devices.simulator_cores)
_NEURON: Final = _Place(_check_neuron, devices.neuron_cores)


def _check_logits(name: str, logits: Tensor) -> None:
    if logits.dim() != 2 or logits.dtype not in TILE_DTYPES:
        raise TypeError(
            f"{name}: logits must be 2-D, bfloat16 or float32, got {logits.dtype} of shape {tuple(logits.shape)}; "
            f"flatten all dimensions but the classes, and cast"
        )


def _forward(
    place: _Place,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, ...]:
    _check_logits(FORWARD, logits)
    wanted, options = _split(keywords)
    place.check(logits, target, options.ignore_index, WHOLE)
    return launch_forward(place.cores(), logits, target, class_weight, options, wanted)


def _forward_shapes(
    logits: Tensor, target: Tensor, class_weight: Tensor | None = None, **keywords: Any
) -> ForwardResults:
    _check_logits(FORWARD, logits)
    return zero_results(logits, target, _split(keywords)[0])


def _split(keywords: dict[str, Any]) -> tuple[Wanted, LossOptions]:
    """The keyword arguments of the forward in their two groups."""
    wanted = {name: keywords[name] for name in Wanted._fields if name in keywords}
    return Wanted(**wanted), LossOptions(**{name: keywords[name] for name in keywords.keys() - wanted.keys()})


def _statistics(
    place: _Place,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    first_class: int = 0,
    num_classes: int | None = None,
    with_distance_sum: bool = False,
    with_argmax: bool = False,
    with_entropy: bool = False,
    **options: Any,
) -> tuple[Tensor, ...]:
    _check_logits(STATISTICS, logits)
    chosen, columns = LossOptions(**options), Columns(first_class, num_classes)
    place.check(logits, target, chosen.ignore_index, columns)
    asked_for = (with_distance_sum, with_argmax, with_entropy)
    return launch_statistics(place.cores(), logits, target, class_weight, chosen, columns, *asked_for)


def _statistics_shapes(
    logits: Tensor,
    *args: Any,
    with_distance_sum: bool = False,
    with_argmax: bool = False,
    with_entropy: bool = False,
    **options: Any,
) -> ShardStatistics:
    _check_logits(STATISTICS, logits)
    return empty_statistics(logits, WHOLE, with_distance_sum, with_argmax, with_entropy)


def _backward(place: _Place, logits: Tensor, target: Tensor, *args: Any, **options: Any) -> Tensor:
    _check_logits(BACKWARD, logits)
    return _run_backward(place, logits, target, *args, **options, inplace=False)


def _backward_shapes(logits: Tensor, *args: Any, **options: Any) -> Tensor:
    _check_logits(BACKWARD, logits)
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _backward_inplace(place: _Place, logits: Tensor, target: Tensor, *args: Any, **options: Any) -> None:
    _check_logits(BACKWARD_INPLACE, logits)
    if not logits.is_contiguous():
        raise ValueError(
            f"{BACKWARD_INPLACE}: logits must be contiguous, got strides {logits.stride()}; pass a contiguous copy"
        )
    _run_backward(place, logits, target, *args, **options, inplace=True)


def _run_backward(
    place: _Place,
    logits: Tensor,
    target: Tensor,
    maximum: Tensor,
    log_sum: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor | None = None,
    grad_logprob: Tensor | None = None,
    class_weight: Tensor | None = None,
    target_weight: Tensor | None = None,
    *,
    inplace: bool,
    first_class: int = 0,
    num_classes: int | None = None,
    weight_sum: float | None = None,
    **options: Any,
) -> Tensor:
    chosen, columns = LossOptions(**options), Columns(first_class, num_classes)
    place.check(logits, target, chosen.ignore_index, columns)
    gradients = (maximum, log_sum, grad_loss, grad_lse, grad_logprob)
    sums = (target_weight, weight_sum)
    return launch_backward(place.cores(), logits, target, *gradients, class_weight, chosen, inplace, columns, *sums)


def _backward_inplace_functionalized(logits: Tensor, *args: Any, **options: Any) -> None:
    """In place where tensors have no memory to write to, as XLA's: the gradient becomes the value of the logits.

    PyTorch functionalizes its own operators before XLA sees them, and refuses a custom one that mutates unless it is
    told how.
    """
    logits.copy_(torch.ops.nkilib.cross_entropy_backward(logits, *args, **options))


def _define(name: str, implementation: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """Define an operator with all its implementations. It refuses every device that gets none here."""

    def refuse(logits: Tensor, *args: Any, **options: Any) -> Any:
        raise devices.unsupported_device(name, logits.device)

    mutated = ("logits",) if name == BACKWARD_INPLACE else ()
    operator = torch.library.custom_op(name, refuse, mutates_args=mutated, schema=_SCHEMAS[name])
    operator.register_fake(shapes)
    operator.register_kernel("cpu")(partial(implementation, _CPU))
    for dispatch_key in ("XLA", "PrivateUse1"):
        torch.library.impl(name, dispatch_key, partial(implementation, _NEURON))
    return operator


cross_entropy_forward = _define(FORWARD, _forward, _forward_shapes)
cross_entropy_shard_statistics = _define(STATISTICS, _statistics, _statistics_shapes)
cross_entropy_backward = _define(BACKWARD, _backward, _backward_shapes)
cross_entropy_backward_ = _define(BACKWARD_INPLACE, _backward_inplace, lambda *args, **options: None)
torch.library.impl(BACKWARD_INPLACE, "Functionalize", _backward_inplace_functionalized)
