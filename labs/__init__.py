"""What measures and attacks the fleet at length: targets of their own, not loaded by `make test`."""
