"""Messages, topics and filters: what every protocol and every queue shares. Knows nothing else."""
