"""``linear_distillation_loss``: a student's divergence from a teacher, from the hidden states of both."""
