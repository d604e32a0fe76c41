"""What is remembered: kept, found again, put into prompts as what it is."""
