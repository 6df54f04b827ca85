"""What the users of an environment may rely on, checked."""

from openenv_sandbox.authoring.checks.report import Criterion, Report
from openenv_sandbox.authoring.checks.runtime import validate_folder, validate_url

__all__ = ["Criterion", "Report", "validate_folder", "validate_url"]
