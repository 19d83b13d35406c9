# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reinforcement learning with TRL's own GRPO trainer and token scores from the kernels, on this computer's CPU:

    python -m examples.grpo

A small language model answers prompts with words, and is rewarded for the share of them that are good. It learns by
GRPO (arXiv 2402.03300) as TRL has it; ``nkilib.torch.trl.install`` is the line that lets the kernels compute
log-probabilities, entropies and their gradients, without logits in memory.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from examples._curve import curve_line, progress_bar, shown_steps
from examples._display import EXAMPLE_WIDTH, counted, heading, make_console, takes
from examples._loss_plot import draw_losses, fault_of, has_matplotlib
from nkilib.nki import NOT_SIMULATED, SIMULATED

WORDS, WIDTH, PROMPT_WORDS, ANSWER_WORDS = 256, 64, 4, 12
# One word of eight is good: an answer at random has that share.
GOOD_SHARE = 8
PROMPTS, ANSWERS, BATCH = 64, 8, 24
LEARNING_RATE = 1e-2
SEED = 0
STEPS, QUICK_STEPS = 40, 20
# Seconds on two cores: of the start, and of a step.
_START, _STEP = 10.0, 0.25
# How many steps at either end are compared, and by how much the later reward has to be larger.
ENDS, GROWTH = 10, 2.0
NO_TRL = "examples.grpo needs TRL, which needs Python 3.11: pip install 'trl==1.16.*' in the checkout's environment"


def is_good(word: str) -> bool:
    """Whether an answer is rewarded for the word."""
    return int(word[1:]) % GOOD_SHARE == 0


def reward(completions: list[str], **_: Any) -> list[float | None]:
    """The share of good words of each answer, as TRL asks for it."""
    return [sum(map(is_good, answer.split())) / ANSWER_WORDS for answer in completions]


def make_tokenizer() -> Any:
    """Make a tokenizer of words w0, w1 and so on, one token each; nothing is downloaded."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    names = [*(f"w{number}" for number in range(WORDS)), *special.values()]
    of_words = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token="w0"))
    of_words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=of_words, **special)


def make_model(tokenizer: Any) -> Any:
    """A Llama of one layer with random parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    configuration = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=1,
        num_attention_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(configuration)


def make_trainer(steps: int, directory: Path) -> Any:
    """TRL's trainer, as anyone would build it."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    generator = torch.Generator().manual_seed(SEED)
    prompts = torch.randint(WORDS, (PROMPTS, PROMPT_WORDS), generator=generator).tolist()
    tokenizer = make_tokenizer()
    configuration = GRPOConfig(
        output_dir=str(directory),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        num_generations=ANSWERS,
        max_completion_length=ANSWER_WORDS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        entropy_coef=1e-3,
        activation_checkpointing=False,
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        seed=SEED,
    )
    return GRPOTrainer(
        model=make_model(tokenizer),
        reward_funcs=reward,
        args=configuration,
        train_dataset=Dataset.from_dict({"prompt": [" ".join(f"w{word}" for word in words) for words in prompts]}),
        processing_class=tokenizer,
    )


def seconds_of(steps: int) -> float:
    """The time that the training takes on the simulator."""
    return _START + steps * _STEP


def train(console: Console, steps: int, directory: Path) -> list[float]:
    """Train on the kernels, show reward and entropy, and return the mean reward of every step."""
    from transformers import PrinterCallback, TrainerCallback

    from nkilib.torch.trl import install

    rewards: list[float] = []
    shown = shown_steps(steps)
    trainer = make_trainer(steps, directory)
    trainer.remove_callback(PrinterCallback)
    with install(devices=("cpu",)), progress_bar(console) as progress:
        task = progress.add_task("training", total=steps, loss=math.nan)

        class Watch(TrainerCallback):
            """Shows what TRL logs at each step."""

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if "reward" not in logs:  # the summary at the end
                    return
                rewards.append(float(logs["reward"]))
                progress.update(task, advance=1, loss=float(logs["loss"]))
                if len(rewards) in shown:
                    line = {"reward": rewards[-1], "entropy": float(logs["entropy"])}
                    console.print(curve_line(len(rewards), line, 1.0))

        trainer.add_callback(Watch())
        trainer.train()
    return rewards


def report(console: Console, rewards: Sequence[float]) -> bool:
    """Say how the training ended; returns whether the reward has grown as it should."""
    ends = min(ENDS, len(rewards) // 2 or 1)
    first, last = (math.fsum(part) / ends for part in (rewards[:ends], rewards[-ends:]))
    learned = last >= GROWTH * first
    verdict = "[green]It learned[/]" if learned else "[bold red]It did not learn[/]"
    console.print(f"{verdict}: mean reward of {counted(ends, 'step')} {first:.3f} -> {last:.3f}.")
    return learned


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for the command line of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.grpo",
        description="Train a small language model by rewards, with TRL's GRPO trainer and scores from the kernels.",
    )
    parser.add_argument("--quick", action="store_true", help="few steps, for a first look")
    parser.add_argument("--steps", type=int, help=f"of training (default {STEPS}, or {QUICK_STEPS} with --quick)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the rewards (needs matplotlib)")
    options = parser.parse_args(arguments)
    if options.steps is None:
        options.steps = QUICK_STEPS if options.quick else STEPS
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    if options.plot and not has_matplotlib():
        parser.error("--plot needs matplotlib: pip install '.[plot]' in the checkout")
    if options.plot and (fault := fault_of(options.plot)):
        parser.error(f"--plot {fault}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; returns 0, 1 if the reward does not grow, or 2 where there is no TRL or no simulator."""
    options = parse_arguments(arguments)
    console = make_console(EXAMPLE_WIDTH)
    missing = NO_TRL if find_spec("trl") is None else None if SIMULATED else NOT_SIMULATED
    if missing is not None:
        console.print(missing, markup=False)
        return 2
    console.print(
        heading(
            "A language model that is rewarded for good words: simulated, not hardware",
            "Shows TRL's GRPOTrainer with token scores of nkilib, by nkilib.torch.trl.install.",
            f"{WORDS} words of which one in {GOOD_SHARE} is good; {counted(options.steps, 'step')} of {BATCH} answers.",
            "The bar is the reward, 1 at most.",
            takes(seconds_of(options.steps)),
        )
    )
    start = time.perf_counter()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # a new trainer of TRL reports to the hub
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of names between releases of TRL and transformers
        rewards = train(console, options.steps, Path(directory))
    learned = report(console, rewards)
    if options.plot:
        draw_losses(options.plot, {"reward": rewards}, {"at random": 1 / GOOD_SHARE}, "mean reward")
        console.print(f"Wrote {options.plot}.", soft_wrap=True)
    console.print(f"{time.perf_counter() - start:.1f} s in all.")
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
