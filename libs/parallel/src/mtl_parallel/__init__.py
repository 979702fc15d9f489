"""Transformers cut over tensor, pipeline and data axes: layers, schedules, ZeRO, sharded state."""
