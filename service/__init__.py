"""The HTTP service: wire -> batcher -> model -> wire."""
