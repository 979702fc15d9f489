"""From text to token bins."""
