"""Looks like vLLM to a supervisor; see `vllm.entrypoints.openai.api_server` beside it."""
