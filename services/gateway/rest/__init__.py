"""The RPCs as HTTP requests: `table` lists them, `routes` serves them, `openapi` describes them."""
