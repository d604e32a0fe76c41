"""The process of the context service, which an extension serves."""
