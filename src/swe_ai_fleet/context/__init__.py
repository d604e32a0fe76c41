"""What projects know of themselves: a graph folded from a stream of changes, and prompt blocks made of it."""
