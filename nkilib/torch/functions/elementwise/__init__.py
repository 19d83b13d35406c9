"""The losses of elements of ``torch.nn.functional``, a file each, on one pair of operators a loss."""
