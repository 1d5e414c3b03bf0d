"""What is deployed beside the service holds together with the service itself."""
