"""Requests as topics and JSON, and the rights that each needs.

Knows everything; nothing here knows it.
"""
