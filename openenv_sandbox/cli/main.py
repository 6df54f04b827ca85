"""Entry."""


def main() -> None:
    """Run."""
