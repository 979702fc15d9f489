"""From token bins to checkpoints."""
