"""What an instruction is, how its operands are checked, and how it is issued."""
