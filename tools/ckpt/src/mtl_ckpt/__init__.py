"""Checkpoints to any layout and format, verified."""
