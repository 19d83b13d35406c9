# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Trainers of TRL with a fused model, with and without ``nkilib.torch.trl.install()``: what multiplies by the weight of
the output layer itself has nothing to fuse, and what takes logits has none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import FusedCalls, fuse_linear_loss, fused_calls

if find_spec("trl") is None or find_spec("peft") is None:
    pytest.skip("needs trl and peft", allow_module_level=True)

# Of parameters after three steps, as a share of their norm.
BUDGET = 1e-5


def _own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A ``compute_loss_func``, which gets the model's own logits."""
    logits = outputs.logits[:, :-1].flatten(0, 1).float()
    return F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


def _arguments(directory: Path) -> dict[str, Any]:
    return {
        "output_dir": str(directory),
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "gradient_checkpointing": False,
        "optim": "sgd",
        "learning_rate": 0.02,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "seed": 0,
        "max_length": 16,
    }


def _sft(directory: Path, **further: Any) -> Any:
    import trl
    from datasets import Dataset

    from tests.torch.trl.trainers import KINDS, model, tokenizer

    of_trainer = {"compute_loss_func": further.pop("own")} if "own" in further else {}
    arguments = trl.SFTConfig(**_arguments(directory), **further)
    rows = Dataset.from_dict(dict(KINDS["sft"].columns))
    return trl.SFTTrainer(
        model(0, tied=False), arguments, train_dataset=rows, processing_class=tokenizer(), **of_trainer
    )


def _preference(name: str, directory: Path) -> Any:
    from importlib import import_module

    from datasets import Dataset

    from tests.torch.trl.trainers import KINDS, model, tokenizer

    module = import_module(f"trl.experimental.{name.lower()}")
    arguments = getattr(module, f"{name}Config")(**_arguments(directory))
    rows = Dataset.from_dict(dict(KINDS["dpo"].columns))
    trainer = getattr(module, f"{name}Trainer")
    return trainer(model(0, tied=False), args=arguments, train_dataset=rows, processing_class=tokenizer())


def _case(kind: str, directory: Path, **options: Any) -> Any:
    from tests.torch.trl.trainers import Case

    return Case(kind, **options).trainer(directory)


# Trainers, and the functions that then run in place of logits; none where TRL multiplies by the weight itself.
TRAINERS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "SFT": (lambda directory: _case("sft", directory), set()),
    "SFT, LoRA": (lambda directory: _case("sft", directory, lora=True), set()),
    "SFT, label smoothing": (lambda directory: _sft(directory, label_smoothing_factor=0.1), {"gather", "sum"}),
    "SFT, a loss of one's own": (lambda directory: _sft(directory, own=_own_loss), {"cross_entropy"}),
    "DPO": (lambda directory: _case("dpo", directory), set()),
    "GRPO": (lambda directory: _case("grpo", directory), set()),
    "ORPO": (lambda directory: _preference("ORPO", directory), {"cross_entropy", "gather", "logsumexp", "mean"}),
    "CPO": (lambda directory: _preference("CPO", directory), {"cross_entropy", "gather", "logsumexp", "mean"}),
}


def _trained(name: str, directory: Path, is_fused: bool, is_installed: bool) -> tuple[dict[str, Tensor], FusedCalls]:
    import huggingface_hub.constants

    from nkilib.torch.trl import install

    calls = FusedCalls()
    with pytest.MonkeyPatch.context() as patch, install(devices=("cpu",)) if is_installed else nullcontext():
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # a new trainer reports to the hub
        trainer = TRAINERS[name][0](directory)
        if is_fused:
            fuse_linear_loss(trainer.model, on_compute="raise")
        start = {key: item.detach().clone() for key, item in trainer.model.named_parameters()}
        trainer.train()
        calls = fused_calls(trainer.model) if is_fused else calls
        end = {key: item.detach() for key, item in trainer.model.named_parameters()}
    assert any(not torch.equal(end[key], start[key]) for key in end)
    return end, calls


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("is_installed", [False, True])
@pytest.mark.parametrize("name", TRAINERS)
def test_three_steps_are_those_of_the_stock_model(name: str, is_installed: bool, tmp_path: Path) -> None:
    expected, _ = _trained(name, tmp_path, is_fused=False, is_installed=False)
    trained, calls = _trained(name, tmp_path, is_fused=True, is_installed=is_installed)
    assert max(float((trained[key] - item).norm() / item.norm()) for key, item in expected.items()) <= BUDGET
    assert (set(calls.fused), calls.computed) == (TRAINERS[name][1], {})
