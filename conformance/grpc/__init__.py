"""What gRPC cases work with: the context that cases get."""
