"""The wire format: frames, JSON, message shapes and limits. Knows neither client nor server."""
