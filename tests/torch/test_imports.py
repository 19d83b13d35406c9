# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``import nkilib.torch`` registers every operator; kernels are loaded by the first launch, wherever it happens."""

from __future__ import annotations

import pickle
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nkilib.torch
from nkilib.torch.dispatch.register import DEFINITIONS, OPERATORS
from tests.torch.test_names import MODULES
from tests.warm_python import run_script

X, Y = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[0.0, 2.0, 5.0]])


def run(tmp_path: Path, code: str) -> list[str]:
    """The lines that a process without nkilib prints."""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = run_script(script)
    assert done.returncode == 0, done.output
    return done.output.splitlines()


def test_the_import_registers_every_operator(tmp_path: Path) -> None:
    code = """
import torch, nkilib.torch
print(*sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("nkilib::")))
"""
    for module in MODULES:
        if not module.startswith("nkilib.torch.t") and module != "nkilib.torch.verl":  # trainers register nothing
            import_module(module)
    (line,) = run(tmp_path, code)
    assert len(DEFINITIONS) > 80
    assert line.split() == sorted(DEFINITIONS)


def test_every_operator_has_its_kernel() -> None:
    for operator in OPERATORS.values():
        assert operator.kernel().__name__.endswith(("_forward", "_backward", "_mixture")), operator.name


class Absolute(nn.Module):
    """A loss by an operator."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the absolute errors."""
        return nkilib.torch.l1_loss(x, y, "none")


def test_a_saved_program_runs_where_only_the_import_was_made(tmp_path: Path) -> None:
    program = torch.export.export(Absolute(), (X, Y))
    assert "nkilib.l1_loss_forward" in str(program.graph)
    torch.export.save(program, tmp_path / "program.pt2")
    code = f"""
import sys, torch, nkilib.torch
assert "nkilib.experimental.loss.elementwise.l1" not in sys.modules
program = torch.export.load({str(tmp_path / "program.pt2")!r})
print(program.module()(torch.tensor({X.tolist()}), torch.tensor({Y.tolist()})).tolist())
"""
    assert run(tmp_path, code) == [str((X - Y).abs().tolist())]


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_graph_ahead_of_time_is_the_first_to_need_a_kernel(reduction: str, tmp_path: Path) -> None:
    code = f"""
import torch, nkilib.torch
x = torch.tensor({X.tolist()}, requires_grad=True)
compiled = torch.compile(nkilib.torch.l1_loss, backend="aot_eager", fullgraph=True)
loss = compiled(x, torch.tensor({Y.tolist()}), {reduction!r})
loss.sum().backward()
print(loss.sum().item(), x.grad.tolist())
"""
    assert run(tmp_path, code) == [f"7.0 {torch.sign(X - Y).tolist()}"]


def test_what_the_package_exports_can_be_pickled(tmp_path: Path) -> None:
    made = pickle.dumps((nkilib.torch.L1Loss("sum"), nkilib.torch.TripletMarginLoss(), nkilib.torch.huber_loss))
    code = f"""
import pickle
l1, triplet, huber = pickle.loads({made!r})
print(l1.reduction, type(triplet).__name__, huber.__name__)
"""
    assert run(tmp_path, code) == ["sum TripletMarginLoss huber_loss"]
