"""The engine behind the emulated vendors: real sandboxes on this machine, and a front for each vendor's protocol.

A *box* is one sandbox: network, pid, mount, uts and ipc namespaces, and an overlay over the host's root whose upper
layer lives in memory. Everything in it ends with the process that runs the tests, also by ``kill -9``. A *face* speaks
one vendor's protocol; a *front* is where its SDK connects. Clock, quota, faults, images and a registry belong to the
engine and are the same for every vendor.

    with Engine() as engine, Front(engine, MyFace(engine)) as front:
        ...  # the vendor's SDK, pointed at front.url

A face subclasses `Face`: ``app`` (an ASGI application) answers API calls; ``route`` says of each request whether it is
a port's (`PortRoute`), refused by the gateway (`Refusal`) or the app's (None). Around each API call it awaits
``engine.hook(op, "before")`` and ``engine.hook(op, "after")``, or ``async with engine.hooked(op)``: that applies the
fault rules, and ``FakeApiError`` is answered in the vendor's own shape. What status 0 cuts is cut already. Boxes come
from ``engine.create``; look-ups show ``engine.visible()``. A face with a server of its own (gRPC) runs it on
``engine.loop``, sets `drop` to what cuts the connection of a call, and uses the front for ports alone (``app`` stays
None).

Everything ``async`` here runs on the engine's own loop, in a thread of its own; tests reach it by `Engine.call`. That
loop is exempt from the guard against blocking calls, and blocks no test's loop.
"""

from ._box import Box, BoxGone, Log
from ._build import BuildFailed
from ._clock import Clock
from ._engine import Engine, QuotaReached
from ._files import Entry
from ._front import Face, Front, PortRoute, Refusal
from ._hooks import Hooked, cut, drop
from ._http import BadRequest, RequestHead
from ._images import EmuImage
from ._ns import needs_root
from ._proc import NoSuchUser, Proc
from ._registry import LOGIN

__all__ = [
    "LOGIN",
    "BadRequest",
    "Box",
    "BoxGone",
    "BuildFailed",
    "Clock",
    "EmuImage",
    "Engine",
    "Entry",
    "Face",
    "Front",
    "Hooked",
    "Log",
    "NoSuchUser",
    "PortRoute",
    "Proc",
    "QuotaReached",
    "Refusal",
    "RequestHead",
    "cut",
    "drop",
    "needs_root",
]
