"""Tools: what agents can do, each operation validated, checked, audited and bounded in one way."""
