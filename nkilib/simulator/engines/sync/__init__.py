"""Instructions of the engines' sequencers: registers, barriers, exchanges."""
