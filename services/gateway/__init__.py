"""HTTP in front of the gRPC services; `main` is the composition root."""
