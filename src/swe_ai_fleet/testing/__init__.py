"""Doubles that ship with the package: as real as they can be without the machine behind them."""

from swe_ai_fleet.testing.model_server import ScriptedModelServer
from swe_ai_fleet.testing.script import Conversation, Failure, Script, ScriptRequest, Turn

__all__ = ["Conversation", "Failure", "Script", "ScriptRequest", "ScriptedModelServer", "Turn"]
