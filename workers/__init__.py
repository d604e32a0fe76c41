"""The workspace runner, and the programs in the containers of a job: `cloning`, then `agent`."""
