"""Found only where the folder is importable as the package ``tiny_env``."""

GREETING = "tiny"
