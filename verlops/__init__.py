"""verlops: reinforcement-learning post-training on rented GPUs at the lowest honest cost."""

__version__ = "0.1.0"
