"""Prompt generators: one file a task; each yields prompts with a reference answer."""
