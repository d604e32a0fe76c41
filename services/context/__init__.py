"""The context service: `main` composes it, `servicer` passes each call to the module that answers it."""
