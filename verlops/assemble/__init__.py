"""From configuration and environment to objects; the only place that picks implementations."""
