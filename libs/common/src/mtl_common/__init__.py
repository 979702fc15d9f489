"""What every mtl tool shares and needs no torch for: configuration, tokenizers, token bins, checkpoint files, layout arithmetic."""
