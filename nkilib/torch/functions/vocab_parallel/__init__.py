"""``vocab_parallel_cross_entropy``: the loss of an output layer whose classes are spread over processes."""
