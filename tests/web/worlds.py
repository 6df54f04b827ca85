"""Environments that a person plays with in a browser."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server import Environment, ToolEnvironment, tool

CANARY = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'


class Colour(str, Enum):
    red = "red"
    green = "green"
    blue = "blue"


class Place(BaseModel):
    x: int = Field(ge=0, description="Column")
    y: int = Field(default=2, ge=0, description="Row")


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: float = Field(gt=0)


class Box(BaseModel):
    kind: Literal["box"] = "box"
    width: float = 1.0
    height: float = 1.0


class Draw(Action):
    """An action with a bit of everything."""

    place: Place
    shape: Annotated[Circle | Box, Field(discriminator="kind")]
    colour: Colour = Colour.green
    tags: list[str] = Field(default_factory=list, description="Words to remember it by")
    label: str | None = None
    amount: int | str = 1
    weight: float | None = None
    filled: bool = False
    corners: list[Place] = Field(default_factory=list)
    extra: dict[str, int] = Field(default_factory=dict)
    reward: float = 1.0


class Canvas(Observation):
    echo: dict[str, Any] = Field(default_factory=dict)
    picture: str = ""
    pixels: list[list[list[int]]] = Field(default_factory=list)
    signal: list[float] = Field(default_factory=list)
    board: list[list[int]] = Field(default_factory=list)
    story: str = ""


def png(width: int, height: int, rgb: tuple[int, int, int]) -> str:
    """A picture in one colour, base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(rgb) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    raw = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b64encode(raw).decode()


class Studio(Environment[Draw, Canvas, State]):
    """Draws what it is told."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, difficulty: Literal["easy", "hard"] = "easy") -> Canvas:
        self._state = State(episode_id=f"episode-{seed}", step_count=0, difficulty=difficulty)
        return self._canvas({}, None)

    def step(self, action: Draw) -> Canvas:
        self._state.step_count += 1
        if action.label == "boom":
            raise ValueError("the canvas is torn")
        done = action.label == "finish"
        return self._canvas(action.model_dump(mode="json", exclude={"metadata"}), action.reward, done)

    def _canvas(self, echo: dict[str, Any], reward: float | None, done: bool = False) -> Canvas:
        count = self._state.step_count
        return Canvas(
            echo=echo,
            picture=png(48, 32, (40, 90 + 20 * (count % 8), 200)),
            pixels=[[[8 * x, 8 * y, 30 * (count % 8)] for x in range(32)] for y in range(24)],
            signal=[((i * (count + 3)) % 17) / 4 for i in range(60)],
            board=[[(x * y + count) % 5 for x in range(7)] for y in range(6)],
            story="Once upon a time there was a canvas. " * 60,
            reward=reward,
            done=done,
        )

    @property
    def state(self) -> State:
        return self._state

    def render_web(self, observation: dict[str, Any]) -> str | None:
        return (
            "<style>p { font: 20px serif; color: rgb(180, 30, 90); }</style>"
            f"<p id='mark'>Step {self._state.step_count}, reward {observation['reward']}</p>"
            "<script>parent.pwned = 1; document.body.dataset.ran = 1</script>" + CANARY
        )

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [("A circle", {"place": {"x": 1}, "shape": {"kind": "circle", "radius": 2}, "reward": 0.5})]


class Lonely(Studio):
    """One at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = False


class Branch(BaseModel):
    left: Branch | Place
    right: Branch | None = None


class Grow(Action):
    """Contains itself."""

    tree: Branch


class Forest(Environment[Grow, Canvas, State]):
    """Shows the tree it was given."""

    def reset(self) -> Canvas:
        return Canvas()

    def step(self, action: Grow) -> Canvas:
        return Canvas(echo=action.model_dump(mode="json", exclude={"metadata"}))

    @property
    def state(self) -> State:
        return State()


class Poison(Action):
    text: str = Field(default="", title=CANARY, description=CANARY)


class Poisoned(Observation):
    text: str = ""
    nested: dict[str, Any] = Field(default_factory=dict)


class Hostile(Environment[Poison, Poisoned, State]):
    """Tries to get markup into the page wherever it can say something."""

    def reset(self) -> Poisoned:
        return Poisoned(text=CANARY, nested={CANARY: [CANARY, {"a": CANARY}]})

    def step(self, action: Poison) -> Poisoned:
        return Poisoned(text=CANARY + action.text, reward=1.0)

    @property
    def state(self) -> State:
        return State(episode_id=CANARY, note=CANARY)

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [(CANARY, {"text": CANARY})]


class Toolbox(ToolEnvironment):
    """Has tools."""

    def __init__(self) -> None:
        self._state = State(step_count=0)

    def reset(self) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return self._state

    @tool
    def add(self, a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    @tool
    def fail(self) -> str:
        """Always fails."""
        raise RuntimeError("no luck")
