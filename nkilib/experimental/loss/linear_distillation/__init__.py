"""Distillation from hidden states: the divergence of a student from a teacher, without the logits of either in HBM."""
