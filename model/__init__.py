"""The stack: transformer layers over one packed matrix X, and the selection of what is returned.

Nothing here knows of HTTP, of requests or of queues.
"""
