"""What "that file" and "the second one" mean: phrases, the things that were named, and how both are matched."""
