"""In the place of aio-pika's module of this name: the broker runs already, and no container is started."""

from __future__ import annotations

from typing import NamedTuple


class DockerNotAvailableError(Exception):
    """Never raised."""


class DockerHostInfo(NamedTuple):
    """Of no host."""


class ContainerInfo(NamedTuple):
    """Where the broker is."""

    id: str
    ports: dict[str, int]
    host: str


def check_docker_available() -> DockerHostInfo:
    return DockerHostInfo()


class DockerClient:
    def __init__(self, _host: DockerHostInfo | None = None) -> None: ...

    def run(self, _image: str, _ports: list[str], environment: dict[str, str] | None = None) -> ContainerInfo:
        assert not environment
        return ContainerInfo("broker", {"5672/tcp": 5672, "5671/tcp": 5671}, "127.0.0.1")

    def kill(self, _container: str) -> None: ...

    def remove(self, _container: str) -> None: ...
