"""One module per backend. Found through the entry-point group ``openenv.sandbox_providers``."""
