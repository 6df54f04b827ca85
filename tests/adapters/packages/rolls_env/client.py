from openenv.core.mcp_client import MCPToolClient


class RollsEnv(MCPToolClient):
    pass
