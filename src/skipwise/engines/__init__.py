"""Compare a checkpoint across inference engines; export and import GGUF."""
