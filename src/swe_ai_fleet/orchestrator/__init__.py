"""Use cases: accept a task, let agents solve it, judge what they submit, deliver the winner."""
