"""What is never traced."""
