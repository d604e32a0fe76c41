"""Use cases: accept a task, let agents solve it, judge what they hand in, deliver the winner."""
