"""Files to deploy Headwater with, and their tests; nothing here is installed."""
