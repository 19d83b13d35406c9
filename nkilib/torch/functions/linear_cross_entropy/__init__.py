"""``linear_cross_entropy`` and ``LinearCrossEntropyLoss``: output layer and loss in one, without logits in memory."""
