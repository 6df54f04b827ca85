"""``python -m openenv_sandbox.cli``."""

from openenv_sandbox.cli.main import main

main()
