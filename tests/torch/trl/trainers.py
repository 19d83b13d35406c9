# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""TRL's own trainers of tiny models, on the CPU, with nothing from a hub: tokenizer and data sets are made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch

from tests.torch.trl.exact import DIVERGENCES, SCORES, Replaced

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Trainer

VOCABULARY, WIDTH, ROWS, PROMPT, COMPLETION = 263, 32, 4, 5, 8
_SPECIAL: Final = ("<pad>", "<eos>", "<unk>")
TEMPERATURE: Final = 0.8
# The teacher is wider than the student.
TEACHER_WIDTH: Final = 48
# What the models of a case with ``capped`` do with their logits, by names of their configurations.
STUDENT_LOGITS: Final = {"logit_scale": 1.3, "final_logit_softcapping": 4.0}
TEACHER_LOGITS: Final = {"logits_scaling": 0.8, "final_logit_softcapping": 6.0}


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words from ``w3`` to the end of the vocabulary, apart by spaces."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {name: number for number, name in enumerate(_SPECIAL)}
    words |= {f"w{number}": number for number in range(len(_SPECIAL), VOCABULARY)}
    of_words = Tokenizer(WordLevel(words, unk_token="<unk>"))
    of_words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=of_words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def model(seed: int, tied: bool, width: int = WIDTH) -> PreTrainedModel:
    """A Llama of one layer with random parameters, large enough that its probabilities are unlike."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    config = LlamaConfig(**sizes, **heads, **special, tie_word_embeddings=tied, initializer_range=0.2)
    return LlamaForCausalLM(config)


def _words(seed: int, count: int) -> str:
    drawn = torch.randint(len(_SPECIAL), VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))
    return " ".join(f"w{number}" for number in drawn.tolist())


def _column(seed: int, length: int, before: str = "") -> list[str]:
    """Texts of unlike lengths, up to ``length`` words."""
    return [before + _words(100 * seed + row, length - row % 3) for row in range(ROWS)]


def reward(completions: list[str], **_: Any) -> list[float]:
    """The share of words with an even number."""
    return [sum(int(word[1:]) % 2 == 0 for word in text.split()) / COMPLETION for text in completions]


@dataclass(frozen=True)
class Kind:
    """A trainer of TRL.

    Attributes:
        trainer, config: the names of its classes.
        columns: the columns of its data set.
        arguments: the arguments of its configuration.
        has_reference: it takes a reference model.
        further: further arguments of the trainer.
        replaced: the function of TRL by which it computes its loss.
    """

    trainer: str
    config: str
    columns: Mapping[str, list[Any]]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    has_reference: bool = False
    further: Mapping[str, Any] = field(default_factory=dict)
    replaced: Replaced = SCORES


_PROMPTS: Final = {"prompt": _column(1, PROMPT)}
_DRAWN: Final = {"max_completion_length": COMPLETION, "temperature": TEMPERATURE}
_SAMPLED: Final = {**_DRAWN, "num_generations": ROWS, "beta": 0.1}
KINDS: Final = {
    "sft": Kind("SFTTrainer", "SFTConfig", {"text": _column(1, 16)}, {"max_length": 16}),
    "dpo": Kind(
        "DPOTrainer",
        "DPOConfig",
        {**_PROMPTS, "chosen": _column(2, COMPLETION, " "), "rejected": _column(3, COMPLETION, " ")},
        has_reference=True,
    ),
    "kto": Kind(
        "KTOTrainer",
        "KTOConfig",
        {**_PROMPTS, "completion": _column(2, COMPLETION, " "), "label": [row % 2 == 0 for row in range(ROWS)]},
        has_reference=True,
    ),
    "grpo": Kind(
        "GRPOTrainer", "GRPOConfig", _PROMPTS, {**_SAMPLED, "entropy_coef": 0.05}, further={"reward_funcs": reward}
    ),
    # It clips ratios of whole sequences: a larger step leaves none that is not clipped, and no gradient.
    "rloo": Kind(
        "RLOOTrainer", "RLOOConfig", _PROMPTS, {**_SAMPLED, "learning_rate": 5e-5}, further={"reward_funcs": reward}
    ),
    "distillation": Kind("DistillationTrainer", "DistillationConfig", _PROMPTS, _DRAWN, replaced=DIVERGENCES),
}


@dataclass(frozen=True)
class Case:
    """The model that is trained, and how.

    Attributes:
        kind: one of :data:`KINDS`.
        precision: ``"float32"``, ``"autocast"``, which is float32 under bf16 autocast, or ``"bfloat16"``, which is a
            model of bfloat16 under it.
        tied: the output layer's weight is the embedding's.
        lora: adapters are trained, and the output layer is frozen.
        options: options of the trainer's configuration.
        teacher: the type of a teacher's parameters, that of the student's by default.
        capped: student and teacher scale and cap their logits, each in its own way.
    """

    kind: str
    precision: str = "float32"
    tied: bool = False
    lora: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    teacher: torch.dtype | None = None
    capped: bool = False

    @property
    def steps(self) -> int:
        """Where weights have come apart by bfloat16's roundings, a comparison says nothing."""
        return 3 if self.precision == "float32" else 1

    def __str__(self) -> str:
        flags = ["tied" * self.tied, "lora" * self.lora, "capped" * self.capped]
        options = [f"{name} {value}" for name, value in self.options.items()]
        teacher = "" if self.teacher is None else f"teacher in {self.teacher}"
        return "-".join(filter(None, [self.kind, self.precision, *flags, *options, teacher]))

    def trainer(self, directory: Path) -> Trainer:
        """A new trainer; the same one at every call. ``directory`` is for what TRL writes."""
        import huggingface_hub
        import trl
        from datasets import Dataset
        from peft import LoraConfig

        kind = KINDS[self.kind]
        policy, reference = model(0, self.tied), model(1, self.tied)
        # Not far from the policy, as references are.
        for ours, theirs in zip(policy.parameters(), reference.parameters(), strict=True):
            theirs.data = torch.lerp(ours.data, theirs.data, 0.1)
        if self.precision == "bfloat16":
            policy, reference = policy.bfloat16(), reference.bfloat16()
        further = dict(kind.further)
        if self.kind == "distillation":
            further["teacher_model"] = self._teacher(policy)
        if self.lora:
            further["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
        elif kind.has_reference:
            further["ref_model"] = reference
        elif "beta" in kind.arguments:  # these load it by the name of the policy
            stored = directory / f"reference-{self.precision}-{self.tied}"
            if not stored.exists():
                reference.save_pretrained(stored)
            policy.config._name_or_path = str(stored)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # a new trainer reports to the hub
            trainer: Trainer = getattr(trl, kind.trainer)(
                model=policy,
                args=self._configuration(kind, directory),
                train_dataset=Dataset.from_dict(dict(kind.columns)),
                processing_class=tokenizer(),
                **further,
            )
        torch.manual_seed(2)
        for name, tensor in trainer.model.named_parameters():
            if "lora_B" in name:  # zero at first, and so would be the gradient of lora_A
                torch.nn.init.normal_(tensor, std=0.1)
        return trainer

    def _teacher(self, student: PreTrainedModel) -> PreTrainedModel:
        """A wider model of the same vocabulary; both scale and cap their logits if the case has that."""
        teacher = model(1, self.tied, TEACHER_WIDTH).to(self.teacher or student.dtype)
        if self.capped:
            student.config.update(STUDENT_LOGITS)
            teacher.config.update(TEACHER_LOGITS)
        return teacher

    def _configuration(self, kind: Kind, directory: Path) -> Any:
        import trl

        # All steps see one generation: what is sampled from weights that rounding moved would be other words.
        again = {"num_iterations": self.steps} if "num_generations" in kind.arguments else {}
        arguments: dict[str, Any] = {
            "output_dir": str(directory),
            "max_steps": self.steps,
            "per_device_train_batch_size": ROWS,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": False,
            # SGD keeps the size of an error; Adam makes every one as large as the step.
            "optim": "sgd",
            "learning_rate": 0.02,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "logging_strategy": "no",
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "bf16": self.precision != "float32",
            "disable_tqdm": True,
            "seed": 0,
        }
        return getattr(trl, kind.config)(**{**arguments, **kind.arguments, **again, **self.options})
