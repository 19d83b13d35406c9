"""The gradient of the student's logits."""
