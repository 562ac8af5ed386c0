"""Throughput benches: how many messages per second a broker moves, beside its peers, in the same run."""
