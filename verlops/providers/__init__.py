"""Where machines come from: one file a cloud."""
