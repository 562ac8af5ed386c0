"""The queue engine measured by itself, in one process."""
