"""Stores for checkpoints and weights."""
