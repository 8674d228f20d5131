"""An HTTP server with the endpoints of OpenAI's API. Needs the extra `serve`."""

from plait.server.app import create_app

__all__ = ["create_app"]
