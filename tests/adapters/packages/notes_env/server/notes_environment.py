from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata, State
from openenv.core.rubrics import Gate, Rubric, Sequential, WeightedSum

from ..models import NoteAction, NoteObservation


class Length(Rubric):
    def forward(self, action, observation):
        return min(1.0, len(action.text) / 10)


class Fresh(Rubric):
    async def forward(self, action, observation):
        return 1.0 if observation.notes.count(action.text) == 1 else 0.0


class NotesEnvironment(Environment[NoteAction, NoteObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        # The rubric alone is set; the base constructor is not called.
        self.rubric = Sequential(Gate(Length(), 0.3), WeightedSum([Length(), Fresh()], [0.5, 0.5]))
        self._state = None

    def reset(self, seed=None, author="nobody", **kwargs):
        self._state = State(episode_id=kwargs.get("episode_id"), step_count=0)
        self._notes, self._author = [], author
        self._reset_rubric()
        return NoteObservation(author=author, metadata={"seed": seed})

    def step(self, action, **kwargs):
        raise AssertionError("step_async is overridden")

    async def step_async(self, action, **kwargs):
        self._state.step_count += 1
        self._notes.append(action.text)
        observation = NoteObservation(notes=list(self._notes), author=self._author)
        observation.reward = await self._apply_rubric_async(action, observation)
        return observation

    @property
    def state(self):
        if self._state is None:
            raise RuntimeError("no episode: call reset first")
        return self._state

    def get_metadata(self):
        return EnvironmentMetadata(name="notes", description="Takes notes")

    def list_splits(self):
        return ["train", "held_out"]

    def num_tasks(self, split):
        return 2 if split == "train" else 1

    def get_task(self, split, index):
        return {"split": split, "index": index}
