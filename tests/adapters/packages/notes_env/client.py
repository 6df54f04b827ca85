from openenv.core.env_client import EnvClient, StepResult
from openenv.core.env_server.types import State

from .models import NoteAction, NoteObservation


class NotesEnv(EnvClient[NoteAction, NoteObservation, State]):
    def reset(self, author="nobody", **kwargs):
        return super().reset(author=author, **kwargs)

    async def write_twice(self, text):
        await self.step(NoteAction(text=text))
        return await self.step(NoteAction(text=text))

    async def count(self):
        return (await self.state()).step_count

    def _step_payload(self, action):
        return {"text": action.text}

    def _parse_result(self, payload):
        observation = NoteObservation(**payload["observation"])
        return StepResult(observation, payload.get("reward"), payload.get("done", False), payload.get("metadata"))

    def _parse_state(self, payload):
        return State(**payload)
