"""What is kept: the store contract and its implementations.

Synchronous, on the caller's thread; no trio, because a commit must not be a
checkpoint. Expected outcomes are returned, faults are raised.
"""
