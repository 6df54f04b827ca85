"""What is kept of requests to a model."""
