"""The wire contract, generation.proto, and its stubs as `make proto` generates them."""
