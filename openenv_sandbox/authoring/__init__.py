"""For those who write environments: beginning one, checking it, and giving it to others."""
