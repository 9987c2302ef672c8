"""What the claims' tests say over and over of the stage (tests/properties/world.py): who is on it, and what was said."""

from __future__ import annotations

from typing import Final

from roskva.model import ClientId, ObjectKey, object_key
from roskva.protocol.messages import Notify
from roskva.registrar.sessions import Session
from tests.properties.application import Application
from tests.properties.pipeline import Task
from tests.properties.world import World

X: Final[ObjectKey] = object_key("demo", 0, b"x")


def session_at(world: World, application: Application) -> Session:
    """The session of a client that is online."""
    session = world.session_of(application)
    assert session is not None
    return session


def client_of(world: World, application: Application) -> ClientId:
    return session_at(world, application).client


def notified(world: World, since: int = 0) -> list[Notify]:
    """What clients were sent, after so many messages of the server."""
    return [one for message in world.server_said[since:] for one in message.notify]


def begin_task(world: World) -> Task:
    """The one task of a new batch, before its first step."""
    world.pipeline.begin()
    (task,) = world.pipeline.tasks
    return task


def take_offline(world: World, application: Application) -> None:
    """Its channel reports that it is gone, and it does not come back by itself."""
    world.reconnecting = False
    world.disconnect(application, noticed=True)
