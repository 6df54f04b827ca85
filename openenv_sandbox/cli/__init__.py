"""The ``openenv`` command: one module per verb, one `Terminal` that prints."""
