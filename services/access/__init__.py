"""Who comes in to the fleet's servers: the access file, tokens, JWTs, certificates, and what each role may do."""
