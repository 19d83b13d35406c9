# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A small decoder-only transformer in PyTorch: words in, logits of the next word out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """Sizes of a model.

    Attributes:
        context: number of words that a position can look back on, itself included.
        width: width of the hidden states, a multiple of ``heads``.
        heads: number of attention heads.
        blocks: number of blocks of an attention and a feed-forward layer.
    """

    context: int = 64
    width: int = 128
    heads: int = 4
    blocks: int = 2


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a norm and added to what came in."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width)
        self.attention_output = nn.Linear(size.width, size.width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size.width),
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, length, width] -> [batch, length, width]."""
        per_head = self.queries_keys_values(self.attention_norm(hidden)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = per_head.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.attention_output(attended.transpose(1, 2).flatten(2))
        return hidden + self.feed_forward(hidden)


class LanguageModel(nn.Module):
    """Embeddings of words and positions, blocks, and an output layer over the vocabulary.

    Args:
        vocabulary_size: V.
        size: the other sizes.
    """

    def __init__(self, vocabulary_size: int, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.blocks)))
        self.norm = nn.LayerNorm(size.width)
        self.output = nn.Linear(size.width, vocabulary_size, bias=False)
        for weight in (self.words.weight, self.positions.weight, self.output.weight):
            nn.init.normal_(weight, std=0.02)  # all words start nearly alike: the first loss is about ln V

    def hidden(self, words: Tensor) -> Tensor:
        """Compute the input of the output layer: [batch, length] word numbers -> [batch, length, width]."""
        positions = torch.arange(words.shape[1], device=words.device)
        return self.norm(self.blocks(self.words(words) + self.positions(positions)))

    def forward(self, words: Tensor) -> Tensor:
        """[batch, length] word numbers -> [batch, length, V] logits of the words that follow."""
        return self.output(self.hidden(words))
