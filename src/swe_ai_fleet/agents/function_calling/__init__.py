"""Function calling: any functions, any task, over the one agent loop; and what goes with a conversation around it."""
