"""The workspace runner, and the programs that run inside of a job: `cloning`, then `agent`."""
