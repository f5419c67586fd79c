"""The trainer: collect, update, commit."""
