"""Lives of queues over HTTP: those of ``queues``, and their model, with a player and a draw of their own."""
