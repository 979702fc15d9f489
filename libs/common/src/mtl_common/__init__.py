"""What every mtl tool shares and needs no torch for."""
