"""Extensions beside the core: a folder each, which can be deleted with its tests (decision 46)."""
