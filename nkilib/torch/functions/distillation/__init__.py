"""``distillation_loss`` and ``DistillationLoss``: a student's divergence from a teacher, from the logits of both."""
