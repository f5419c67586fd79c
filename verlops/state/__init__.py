"""What the controller must not forget."""
