"""Curation: from a corpus to a clean one, by the steps of a recipe."""
