"""What people are answered: formats of channels."""
