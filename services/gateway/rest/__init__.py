"""The RPCs as HTTP requests: `table` lists them, `answering` serves them, `openapi` describes them."""
