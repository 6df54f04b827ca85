from .client import LanternEnv
from .models import LanternAction, LanternObservation, LanternState

__all__ = ["LanternAction", "LanternEnv", "LanternObservation", "LanternState"]
