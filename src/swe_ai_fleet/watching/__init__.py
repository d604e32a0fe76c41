"""What those who watch an execution are told: its events off the wire, in words, as progress, as audit chains."""
