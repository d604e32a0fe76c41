"""What the scripted model says in environment runs, chosen by the module that is missing."""

from __future__ import annotations

import json

from swe_ai_fleet.testing import Conversation, Turn
from tests.chat_script import called, final

LACKING = "[lacking]"
# It leaves a package as pip does, with what an index said of it.
PROVIDE = (
    "python3 -c \"import os, sysconfig; site = sysconfig.get_path('purelib'); "
    "os.mkdir(site + '/almanac-1.0.dist-info'); "
    "open(site + '/almanac-1.0.dist-info/METADATA', 'w').write('Name: almanac\\nVersion: 1.0\\n'); "
    "open(site + '/almanac.py', 'w').write('SUN = 3')\""
)
_RUN = "You make a repository's own tests run"


def _proposal(**fields: object) -> Turn:
    return Turn(content=json.dumps({"setup": [], "test_command": "", "notes": "looked", **fields}))


_TRY = called("shell_run_command", command=PROVIDE)
_TEST = called("tests_run")
_MEND = called("shell_run_command", command="sed -i 's/SUN + 1/SUN + 2/' weather.py")

ENVIRONMENT_CONVERSATIONS = (
    Conversation(regex=rf"(?s){_RUN}.*named '?almanac", turns=(_TRY, _TEST, _proposal(setup=[PROVIDE]))),
    Conversation(match=LACKING, turns=(_MEND, final("Mended."))),
)
