from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from .models import LanternAction, LanternObservation, LanternState


class LanternEnv(EnvClient[LanternAction, LanternObservation, LanternState]):
    def __init__(self, base_url: str = "http://localhost:8000", **kwargs):
        super().__init__(base_url, **kwargs)

    def _step_payload(self, action):
        return {"lit": action.lit}

    def _parse_result(self, payload):
        fields = {key: value for key, value in payload["observation"].items() if key != "ashes"}
        observation = LanternObservation(**fields, done=payload["done"])
        return StepResult(observation=observation, reward=payload["reward"], done=payload["done"], info={"lit": True})

    def _parse_state(self, payload):
        return LanternState(**payload)
