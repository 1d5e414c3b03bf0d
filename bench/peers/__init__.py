"""Headwater beside other ways to serve the same model, and beside the limit of the machine: `make bench`."""
