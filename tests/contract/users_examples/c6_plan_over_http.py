"""Examples C6, C7 and C8: a goal is set, its approach adjusted, approved and carried out; another one is rejected.

Takes the gateway's address and its token.
"""

import json
import sys
from urllib.request import Request, urlopen

address, token = sys.argv[1:]


def post(path, **body):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with urlopen(Request(address + path, json.dumps(body).encode(), headers)) as answer:
        found = json.load(answer)
    print(json.dumps(found))
    return found


goal = "Work out what the squares come to"
proposal = post("/api/execute-plan", goal=goal, selected_entities=[])
session_id = proposal["session_id"]
if proposal["status"] == "awaiting_approval":
    post("/api/approve-approach", session_id=session_id, decision="adjusted", adjustment="twice, to be sure")
    post("/api/approve-approach", session_id=session_id, decision="approved")
    post("/api/continue-plan", session_id=session_id)

other = post("/api/execute-plan", goal=goal, selected_entities=["Invoice"], session_id=f"{session_id}-2")
post("/api/approve-approach", session_id=other["session_id"], decision="rejected", adjustment="not today")
