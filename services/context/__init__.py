"""The context service: `main` puts it together, `servicer` hands each call to the module that answers it."""
