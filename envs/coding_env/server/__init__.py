"""The server of the coding environment."""
