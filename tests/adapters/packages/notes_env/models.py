from openenv.core.env_server.types import Action, Observation


class NoteAction(Action):
    text: str


class NoteObservation(Observation):
    notes: list[str] = []
    author: str = "nobody"
