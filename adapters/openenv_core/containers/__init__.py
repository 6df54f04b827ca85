"""`openenv.core.containers` under the older package name."""
