"""The fleet's servers: each is a package with its composition root in `main`; the modules here are shared by all."""
