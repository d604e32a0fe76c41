"""HTTP in front of the gRPC services: `main` puts it together, `app` its rooms."""
