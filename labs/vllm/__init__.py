"""A real vLLM server with a tiny random model: its protocol, its errors, its metrics. Never the quality of a model."""
