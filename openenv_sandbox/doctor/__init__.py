"""What could be wrong with this installation and this machine, each finding with its remedy."""

from openenv_sandbox.doctor.findings import Finding, examine

__all__ = ["Finding", "examine"]
