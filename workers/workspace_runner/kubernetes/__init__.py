"""Jobs as Kubernetes Jobs: the manifest, the API, the watch, and what an end means."""
