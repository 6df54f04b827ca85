import inspect

from openenv.core.env_server import create_app

try:
    from ..models import LanternAction, LanternObservation
    from .lantern_environment import LanternEnvironment
except ImportError:
    from models import LanternAction, LanternObservation
    from server.lantern_environment import LanternEnvironment

first = next(iter(inspect.signature(create_app).parameters.values()))
wants_instance = "Environment" in str(first.annotation) and "Callable" not in str(first.annotation)
environment = LanternEnvironment() if wants_instance else LanternEnvironment

app = create_app(environment, LanternAction, LanternObservation, env_name="lantern_env")


def main(host: str = "0.0.0.0", port: int = 8000):
    import uvicorn

    uvicorn.run(app, host=host, port=port)


if __name__ == "__main__":
    main()
