"""What runs on rented machines: rollout, trainer, reward server, guard."""
