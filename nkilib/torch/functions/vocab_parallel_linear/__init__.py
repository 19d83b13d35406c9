"""Linear cross-entropy of a vocabulary that is spread over processes."""
