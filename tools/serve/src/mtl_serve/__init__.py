"""From a checkpoint to generated text over gRPC."""
