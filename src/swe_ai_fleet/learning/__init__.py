"""What experience says: outcomes kept, and what to try next recommended with its uncertainty."""
