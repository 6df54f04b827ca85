"""Other people's interfaces on ours: one module per framework."""
