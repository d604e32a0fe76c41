"""Access to the fleet's servers: the access file, tokens, JWTs, certificates, and the rights of each role."""
