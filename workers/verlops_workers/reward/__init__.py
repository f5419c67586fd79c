"""The reward server and its scorers."""
