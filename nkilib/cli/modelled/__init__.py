# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of this library that ``profile`` and ``tune`` model.

- ``registry``: all families, and the selection of one by the command line;
- ``family``: the interface of a family;
- ``output_layer``: softmax, cross-entropy, and losses from hidden states and output weights;
- ``losses``: the losses with a registry entry, and distillation from logits.
"""
