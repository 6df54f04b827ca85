import inspect

from fastapi.responses import HTMLResponse
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.web_interface import load_environment_metadata

from ..models import NoteAction, NoteObservation
from .notes_environment import NotesEnvironment


def build_page(web_manager, action_fields, metadata, is_chat_env, title, quick_start_md):
    raise AssertionError("there is no gradio here")


options = {
    "gradio_builder": None,
    "custom_tab_name": "Notes",
    "custom_tab_primary": True,
    "show_default_tab": False,
    "title_override": "Notes",
}
known = inspect.signature(create_app).parameters
options = {name: value for name, value in options.items() if name in known}
assert len(options) == 5, known

app = create_app(NotesEnvironment, NoteAction, NoteObservation, env_name="notes_env", max_concurrent_envs=2, **options)
metadata = load_environment_metadata(NotesEnvironment(), "notes_env")

for route in list(app.routes):
    if getattr(route, "path", None) == "/web" and "GET" in getattr(route, "methods", set()):
        app.routes.remove(route)


@app.get("/web", response_class=HTMLResponse)
async def page():
    return f"<h1>{metadata.name}: {metadata.description}</h1>"
