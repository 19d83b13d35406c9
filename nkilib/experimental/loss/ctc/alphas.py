"""The alphas of a group, stored as they come."""

from __future__ import annotations

from nkilib.experimental.loss.ctc.emissions import EmissionSource
from nkilib.experimental.loss.ctc.plan import Group, Times
from nkilib.experimental.loss.ctc.recursion import Recursion
from nkilib.experimental.loss.ctc.sequences import Sequences
from nkilib.experimental.loss.ctc.turns import Turn, run_turns
from nkilib.nki import nisa, nl

_TILES = 2


def store_alphas(sequences: Sequences, log_probs_hbm: nl.NkiTensor, blank: int, alpha_hbm: nl.NkiTensor) -> None:
    """The alphas of all times of a group, into [T, N, 2 S + 1]. Behind a sequence's end they mean nothing."""
    group = sequences.group
    source = EmissionSource.make(sequences, log_probs_hbm, blank, is_alpha=True)
    recursion = Recursion.make(group, True, sequences.may_skip_sbuf)
    start_sbuf = recursion.of(0)[0 : group.rows, 0, 0:1]

    def run(turn: Turn) -> None:
        _store(group, recursion.of(turn.number - 1), turn.before, alpha_hbm)
        if turn.number == 0:
            source.load(turn.number, turn.now)
            source.make_ready(turn.number, turn.now)
        if not turn.computes:
            return
        source.load(turn.number + 1, turn.following)
        recursion.run(turn, source)

    nisa.memset(dst=start_sbuf, value=0.0)
    run_turns(group.plan, True, _TILES, run)


def _store(group: Group, states_sbuf: nl.NkiTensor, times: list[Times], alpha_hbm: nl.NkiTensor) -> None:
    plan = group.plan
    for block, of_block in enumerate(times):
        first = 2 * plan.pairs * block
        states = min(2 * plan.pairs, plan.states - first)
        if of_block.is_empty or states <= 0:
            continue
        chunk_hbm = group.sequences(of_block.of(alpha_hbm), 1).slice(2, first, first + states)
        rows_sbuf = states_sbuf[group.block(block), of_block.start + 1 : of_block.end + 1, 1 : states + 1]
        nisa.dma_copy(dst=chunk_hbm.permute((1, 0, 2)), src=rows_sbuf)
