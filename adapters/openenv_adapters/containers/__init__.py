"""The container classes of older code, on our launcher.

They give a server's address as plain text. New code uses `openenv_sandbox.launch`.
"""
