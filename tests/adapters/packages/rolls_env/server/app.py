from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

try:
    from .rolls_environment import Rolls
except ImportError:
    from server.rolls_environment import Rolls

app = create_app(Rolls, CallToolAction, CallToolObservation, env_name="rolls_env")
