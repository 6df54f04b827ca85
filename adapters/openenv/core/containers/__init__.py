"""Starting servers in containers, as older code does it."""
