"""The rollout worker and its engines."""
