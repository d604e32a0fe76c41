"""The fleet's servers, a package each with its composition root in `main`; beside them what all of them serve by."""
