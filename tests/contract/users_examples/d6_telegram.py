"""D6: the answer as Telegram takes it; pages are divided by a form feed."""

import asyncio
import sys

from swe_ai_fleet import ChatSession

result = asyncio.run(ChatSession(channel="telegram").send(sys.argv[1]))
print("\f".join(result.pages))
