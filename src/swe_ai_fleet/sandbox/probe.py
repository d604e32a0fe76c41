"""Which rung this host can hold, and what that closes."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.sandbox import jail
from swe_ai_fleet.sandbox.control_groups import ControlGroups
from swe_ai_fleet.sandbox.policy import Rung, SandboxPolicy
from swe_ai_fleet.sandbox.workspace import Host, LocalWorkspace
