# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run as a program: what public functions and users' wrappers give through ``nki_op``, as one line of JSON.

Operators are registered when nkilib.torch is imported, so the device and the stand-in for torch_neuronx come first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.torch.dispatch import neuronx
from tests.torch.dispatch.neuronx import to_cpu, to_device
from tests.torch.fake_group import two_ranks
from tests.torch.fresh import leave
from tests.torch.inputs import CLASSES, make_logits, make_targets
from tests.torch.operator_log import OperatorLog

POSITIONS, FEATURES = 12, 16
OPTIONS = {"label_smoothing": 0.1, "lse_square_scale": 0.01}


def install() -> list[torch.library.Library]:
    """The device, and the module torch_neuronx; they last while the returned objects do."""
    registrations = [*neuronx.register(), *neuronx.define()]
    module = ModuleType("torch_neuronx")
    module.nki_op = neuronx.nki_op  # type: ignore[attr-defined]
    sys.modules["torch_neuronx"] = module
    return registrations


@contextmanager
def kernels_of_torch_neuronx() -> Iterator[dict[str, neuronx.Kernel]]:
    """Kernels are in its hands, and nkilib takes its NKI for the real one."""
    from nkilib.torch.dispatch import devices
    from nkilib.torch.dispatch.register import OPERATORS

    kernels = {name: neuronx.Kernel(operator.kernel()) for name, operator in OPERATORS.items()}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(devices, "SIMULATED", False)
        for name, kernel in kernels.items():
            monkeypatch.setitem(OPERATORS, name, replace(OPERATORS[name], kernel=lambda kernel=kernel: kernel))
        yield kernels


def tensors(target_dtype: torch.dtype, ignored: int | None) -> tuple[Tensor, Tensor]:
    """A leaf and class indices on the device."""
    leaf = to_device(make_logits(POSITIONS, CLASSES)).requires_grad_()
    return leaf, to_device(make_targets(POSITIONS, ignored=ignored).to(target_dtype))


def results(
    loss_function: Callable[..., Tensor], target_dtype: torch.dtype = torch.int64, ignored: int | None = -100
) -> dict[str, Any]:
    """Loss and gradient."""
    leaf, target = tensors(target_dtype, ignored)
    loss = loss_function(leaf * 1.0, target)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"loss": to_cpu(loss).item(), "gradient": to_cpu(gradient).tolist()}


def of_a_layer(loss_function: Callable[..., Tensor], **arguments: Any) -> dict[str, Any]:
    """Loss and gradients of output layer and loss in one, and what was added to a sum of the weight's."""
    x, w = (to_device(make_logits(rows, FEATURES, seed=rows)).requires_grad_() for rows in (POSITIONS, CLASSES))
    target, summed = to_device(make_targets(POSITIONS, ignored=-100)), to_device(torch.ones(CLASSES, FEATURES))
    loss = loss_function(x * 1.0, w, target, grad_weight_sum=summed, **arguments)
    (3.0 * loss).backward()
    return {
        "loss": to_cpu(loss).item(),
        "gradient": None if x.grad is None else to_cpu(x.grad).tolist(),
        "sum": to_cpu(summed).tolist(),
    }


def logged(loss_function: Callable[..., Tensor], target_dtype: torch.dtype) -> dict[str, Any]:
    """Return ``results`` and the names of the operators that ran."""
    with OperatorLog() as log:
        result = results(loss_function, target_dtype)
    return {**result, "operators": log.names}


def _recorded_graphs() -> Any:
    """A backend that keeps the graphs, imported here, because collection imports this file for its constants."""
    from torch._dynamo.testing import AotEagerAndRecordGraphs

    return AotEagerAndRecordGraphs()


def in_a_graph(
    loss_function: Callable[..., Tensor], target_dtype: torch.dtype, ignored: int | None = -100
) -> dict[str, Any]:
    """Return ``results`` from one graph of each direction, the nodes of both and the types of all that is in them."""
    graphs = _recorded_graphs()
    compiled = torch.compile(loss_function, fullgraph=True, dynamic=False, backend=graphs)
    result = results(compiled, target_dtype, ignored)
    nodes = [node for graph in (*graphs.fw_graphs, *graphs.bw_graphs) for node in graph.graph.nodes]
    return {
        **result,
        "graphs": [len(graphs.fw_graphs), len(graphs.bw_graphs)],
        "nodes": [str(node.target) for node in nodes if node.op == "call_function"],
        "types": sorted({str(node.meta["val"].dtype) for node in nodes if isinstance(node.meta.get("val"), Tensor)}),
    }


def overwriting_in_a_graph() -> dict[str, Any]:
    """The operator that returns nothing, in a graph, beside the one that returns the gradient."""
    logits, target = make_logits(POSITIONS, CLASSES), make_targets(POSITIONS).to(torch.int32)
    maximum = logits.max(1).values
    log_sum = (logits - maximum[:, None]).logsumexp(1)
    inputs = [to_device(item) for item in (logits, target, maximum, log_sum, torch.ones(POSITIONS))]
    ops = torch.ops.nkilib_neuron

    def overwritten(logits: Tensor, *others: Tensor) -> Tensor:
        logits = logits * 1.0
        ops.cross_entropy_backward_(logits, *others)
        return logits

    graphs = _recorded_graphs()
    result = torch.compile(overwritten, fullgraph=True, dynamic=False, backend=graphs)(*inputs)
    nodes = [str(node.target) for node in graphs.fw_graphs[0].graph.nodes if node.op == "call_function"]
    expected = to_cpu(ops.cross_entropy_backward(*inputs))
    return {"equal": torch.equal(to_cpu(result), expected), "nodes": nodes}


def compilations(loss_function: Callable[..., Tensor]) -> dict[str, int]:
    """How often a step is compiled where a tensor changes, and where a constant does."""
    from torch._dynamo.testing import CompileCounter

    leaf, target = tensors(torch.int32, ignored=None)
    counts = {}
    for what in ("tensor", "constant"):
        counter = CompileCounter()
        torch._dynamo.reset()
        compiled = torch.compile(loss_function, fullgraph=True, dynamic=False, backend=counter)
        for step in (1.0, 2.0):
            changed = (
                {"normalizer": to_device(torch.tensor(step))} if what == "tensor" else {"label_smoothing": step / 4}
            )
            compiled(leaf * 1.0, target, **changed)
        counts[what] = counter.frame_count
    return counts


def beyond_32_bits(loss_function: Callable[..., Tensor], forward: neuronx.Kernel) -> list[int]:
    """The targets that the kernel gets where one is 2^32 + 3, and one is 2^32 - 100."""
    target = make_targets(POSITIONS)
    target[:2] = torch.tensor([2**32 + 3, 2**32 - 100])
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        loss_function(to_device(make_logits(POSITIONS, CLASSES)), to_device(target))
    inputs: list[int] = to_cpu(forward.keywords_of_launches[-1]["targets_hbm"]).tolist()
    return inputs[:2]


def fake_shapes() -> list[Any]:
    """Shapes and types that the operator has for tensors without values."""
    with FakeTensorMode():
        logits = torch.empty(POSITIONS, CLASSES, dtype=torch.bfloat16, device="neuron")
        target = torch.empty(POSITIONS, dtype=torch.int32, device="neuron")
        actual = torch.ops.nkilib_neuron.cross_entropy_forward(logits, target, with_argmax=True)
        return [[list(result.shape), str(result.dtype), result.device.type] for result in actual]


def main() -> None:
    """Print the results of all runs as JSON."""
    registrations = install()
    from nkilib.torch import cross_entropy, linear_cross_entropy, vocab_parallel_cross_entropy
    from nkilib.torch.dispatch.devices import registrar
    from tests.torch.users_wrappers import function_over_kernels, operators_over_kernels

    whole = partial(cross_entropy, **OPTIONS)
    shards = partial(vocab_parallel_cross_entropy, shard_sizes=[CLASSES, 0], **OPTIONS)
    report: dict[str, Any] = {"registrar": [registrar.name, registrar.reason]}
    with kernels_of_torch_neuronx() as kernels, two_ranks(), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: None)  # what the other rank does to it
        report["eager"] = logged(whole, torch.int64)
        report["in place"] = logged(partial(whole, inplace=True), torch.int32)
        report["in shards"] = results(shards)
        report["graph"] = in_a_graph(whole, torch.int32)
        report["overwriting graph"] = overwriting_in_a_graph()
        report["compilations"] = compilations(cross_entropy)
        report["beyond 32 bits"] = beyond_32_bits(whole, kernels["cross_entropy_forward"])
        report["fake"] = fake_shapes()
        with OperatorLog() as log:
            report["layer"] = of_a_layer(linear_cross_entropy)
        report["operators of the layer"] = log.names
        layer = torch.compile(linear_cross_entropy, fullgraph=True, dynamic=False, backend="aot_eager")
        report["layer in a graph"] = of_a_layer(layer)
        report["users function"] = results(function_over_kernels(neuronx.Kernel), torch.int32, ignored=None)
        operators = operators_over_kernels(neuronx.nki_op, neuronx.Kernel)
        report["users operators"] = results(operators, torch.int32, ignored=None)
        report["users graph"] = in_a_graph(operators, torch.int32, ignored=None)
    print(json.dumps(report))
    del registrations


if __name__ == "__main__":
    main()
    leave()
