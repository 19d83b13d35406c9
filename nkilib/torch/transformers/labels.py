# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments that ``transformers`` passes to the loss of a causal language model, converted to a target for each
position and the divisor of the summed losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch.dispatch.reductions import reduced


@dataclass(frozen=True)
class CausalLabels:
    """The arguments that ``transformers`` passes to a loss beside logits or hidden states.

    Attributes:
        caller: the public function that error messages name.
        labels: [..., sequence] integer, the tokens themselves.
        shift_labels: [..., sequence] or flat, the target of every position; replaces ``labels``.
        ignore_index: label of tokens that are not targets.
        num_items_in_batch: the divisor of the sum of the losses; None means the number of targets of this call.
    """

    caller: str
    labels: Tensor | None
    shift_labels: Tensor | None
    ignore_index: int
    num_items_in_batch: Tensor | int | None

    def targets_of(self, name: str, tensor: Tensor) -> Tensor:
        """Return the target of every position of ``tensor``, [..., sequence, width], as a tensor [..., sequence] on its
        device.

        Args:
            name: the name of ``tensor`` in errors.
            tensor: logits or hidden states.

        Raises:
            ValueError: neither labels nor targets, or their number is not that of the positions.
        """
        targets, positions = self.shift_labels, tensor.shape[:-1]
        if targets is None:
            if self.labels is None:
                raise ValueError(f"{self.caller}: labels or shift_labels must be given, got neither; pass labels")
            # Every position keeps a row, the last one without a target, so that shapes do not depend on values.
            targets = F.pad(self.labels, (0, 1), value=self.ignore_index)[..., 1:]
        if targets.numel() != positions.numel():
            raise ValueError(
                f"{self.caller}: there must be a label for each of the {positions.numel()} positions of {name}, "
                f"{tuple(positions)}, got {targets.numel()} of shape {tuple(targets.shape)}; where logits_to_keep "
                f"shortens the {name}, shorten the labels in the same way"
            )
        return targets.to(tensor.device).reshape(positions)

    def normalizer(self, device: torch.device) -> Tensor | None:
        """Return the divisor of the sum as a scalar tensor on ``device``, also for one of shape [1], as data
        parallelism may pass it; None without ``num_items_in_batch``.

        Raises:
            ValueError: it does not have one element.
        """
        if self.num_items_in_batch is None:
            return None
        items = torch.as_tensor(self.num_items_in_batch, device=device)
        if items.numel() != 1:
            raise ValueError(
                f"{self.caller}: num_items_in_batch must be a number or a tensor of one element, got shape "
                f"{tuple(items.shape)}; pass its sum"
            )
        return items.reshape(())

    def mean(self, losses: Tensor, target: Tensor, normalizer: Tensor | None) -> Tensor:
        """Return the sum of the losses of all positions, divided as ``transformers`` divides it.

        Args:
            losses: float32, 0 where the target is ignored.
            target: a tensor of the shape of ``losses``.
            normalizer: the divisor; None for the number of targets, with NaN if that is 0, as PyTorch's mean.
        """
        if normalizer is not None:
            return losses.sum() / normalizer.to(torch.float32)
        count = (target != self.ignore_index).sum()
        return reduced(losses, "mean", (), count, count == 0)
