"""A secured installation: an authority and certificates, NATS with accounts, tokens, and settings that use them."""
