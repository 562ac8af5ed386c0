"""What HTTP cases work with: a client on bare sockets, and the context that cases get."""
