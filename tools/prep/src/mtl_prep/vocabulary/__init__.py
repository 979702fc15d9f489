"""Tokenizers learned from a corpus."""
