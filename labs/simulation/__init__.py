"""Many executions on many nodes on virtual time, and the plots of it."""
