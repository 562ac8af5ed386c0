"""What gRPC cases work with: the interfaces, and the context that cases get."""
