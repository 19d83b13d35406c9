# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sentences that many refusals share, for tables of rules: `{dst}` stands for the text of the operand `dst`."""

from __future__ import annotations

COPY_FIRST = "; copy it to sbuf first, with nisa.tensor_copy"
FLOATS = "bfloat16, float16, float32, float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, tfloat32"
DMA_MEMORIES = "private_hbm or sbuf or shared_hbm"
LOAD_FIRST = "; load it to sbuf first, with nisa.dma_copy"


def must(operand: str, what: str, advice: str = "") -> str:
    """The operand is named, then what is required, what came, and what to do."""
    return f"operand '{operand}' must {what}, got {{{operand}}}{advice}"


def one_type(operand: str, types: str) -> str:
    """The operand has another type than those."""
    return must(operand, f"have one of the types {types}")


def fewer_dimensions(operand: str, most: int) -> str:
    """The operand has more dimensions than the instruction takes."""
    advice = "; flatten some with flatten_dims or reshape"
    return must(operand, f"have at most {most} dimensions, {most - 1} of them free", advice)


def pairs(elements: int, of: str) -> str:
    """The pattern of an instruction has other numbers than the operand has elements."""
    return (
        f"pattern must have 1 to 4 pairs [step, num] whose numbers multiply to the {elements} elements per partition "
        f"of {{{of}}}, got {{pattern}}"
    )


def needs(generation: str, target: str) -> str:
    """The instruction came with a later generation than the target."""
    return f"needs {generation} or newer; the target is {target}, set NEURON_PLATFORM_TARGET_OVERRIDE to change it"


def same_partitions(first: str, second: str) -> str:
    """Two operands have unlike numbers of partitions."""
    return _both(first, second, "must have the same number of partitions")


def same_elements(first: str, second: str) -> str:
    """Two operands have unlike numbers of elements in a partition."""
    return _both(first, second, "must have the same number of elements per partition")


def one_each(operand: str, of: str) -> str:
    """The operand has not one element for each partition of another one."""
    return must(operand, f"have shape {{{of}:column}}, one element for each partition of '{of}'")


def not_both_in_psum(first: str, second: str) -> str:
    """Two inputs are in PSUM, of which an instruction reads one."""
    return f"operands '{first}' and '{second}' must not both be in psum"


def out_of_reach(operand: str) -> str:
    """The operand is in PSUM, and the instruction runs on GpSimd."""
    return f"operand '{operand}': the GpSimd engine cannot access psum, got {{{operand}}}"


def _both(first: str, second: str, what: str) -> str:
    return f"operands '{first}' and '{second}' {what}, got {{{first}}} and {{{second}}}"
