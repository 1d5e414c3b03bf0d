"""Checkpoints: files and families on one side, our names and shapes on the other."""
