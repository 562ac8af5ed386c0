"""The storage bench: what the log and the queues on it do in a second, beside raw system calls on the same bytes."""
