"""D1: the block of settings is the environment of this program (the text has no program for it)."""

import sys

from swe_ai_fleet.extensions.chat.opening import chat_rules
from swe_ai_fleet.settings import Settings

settings = Settings()
rules = chat_rules(settings, retry_waits=())
print(rules.mode, rules.limits.max_iterations, rules.limits.max_tool_calls, rules.limits.timeout_seconds)
print(settings.parallel_calls, rules.threshold)
assert rules == chat_rules(Settings.model_construct(home=settings.home), retry_waits=()) or "changed" in sys.argv
