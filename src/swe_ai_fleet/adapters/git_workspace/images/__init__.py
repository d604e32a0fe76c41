"""Container images without a daemon: found where the operator allows, checked, and unpacked once for a node."""
