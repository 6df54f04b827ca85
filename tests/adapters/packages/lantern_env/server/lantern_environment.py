from openenv.core.env_server import Environment

try:
    from ..models import BurntOut, LanternObservation, LanternState
except ImportError:
    from models import BurntOut, LanternObservation, LanternState


class LanternEnvironment(Environment):
    """Neither calls the base constructor nor takes any argument of reset; the transform alone is set."""

    def __init__(self, oil: int = 2):
        self.transform = None
        self._oil = oil
        self._state = LanternState(step_count=0)

    def reset(self):
        self._state = LanternState(episode_id="night", step_count=0)
        return LanternObservation(brightness=0)

    def step(self, action):
        self._state.step_count += 1
        self._state.history.append(action.lit)
        kind = BurntOut if self._state.step_count >= self._oil else LanternObservation
        observation = kind(brightness=9 if action.lit else 0, done=kind is BurntOut)
        observation.reward += 0.5
        observation.metadata["steps"] = self._state.step_count
        return self._apply_transform(observation)

    @property
    def state(self):
        return self._state
