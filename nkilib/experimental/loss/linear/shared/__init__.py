"""What forward and backward share: sizes, operands and their blocks, products."""
