"""What losses of an output layer share: operands from hidden states and weights, blocks, streams, products.

The kernels are in :mod:`nkilib.experimental.loss.linear_cross_entropy` and
:mod:`nkilib.experimental.loss.linear_distillation`.
"""
