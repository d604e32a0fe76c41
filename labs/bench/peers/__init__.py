"""Other agents on the same scripted work, each in an environment of its own, in the same run as ours."""
