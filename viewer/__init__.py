"""The page at `GET /`: files that the service reads once and serves as they are. docs/viewer.md tells of it."""
