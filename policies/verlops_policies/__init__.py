"""Pure decision rules: (observation, memory, pool) to desired."""
