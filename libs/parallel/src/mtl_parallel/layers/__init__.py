"""Layers of a decoder. Each takes the mesh axis it is cut over; at size 1 it is a plain layer."""
