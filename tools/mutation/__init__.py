"""The parts of ``tools.mutate``: the possible changes, copies of the checkout, and verdicts of the tests."""
