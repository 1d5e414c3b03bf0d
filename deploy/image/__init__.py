"""Programs that the Dockerfile runs or copies: each is a file by itself, and imports nothing of Headwater."""
