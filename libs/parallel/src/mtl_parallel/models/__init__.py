"""Models put together from the layers, one pipeline stage at a time."""
