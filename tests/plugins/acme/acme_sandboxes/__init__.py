"""Sandboxes of Acme."""
