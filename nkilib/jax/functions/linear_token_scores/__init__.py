"""Scores of tokens from hidden states: the public function and what it returns."""
