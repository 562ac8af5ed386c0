"""Clients of the broker's faces of requests and answers, for Python programs; each needs the extra of its face."""
