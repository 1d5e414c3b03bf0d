"""The image, built and run without a daemon: `make image-test`."""
