import asyncio,sys
from swe_ai_fleet.sandbox import examine_sandbox
from swe_ai_fleet.domain.errors import FleetError
try: r=asyncio.run(examine_sandbox(sys.argv[1])); print(r.level,"OPEN",[a.name for a in r.leaves_open]); print(*r.notes,sep="\n")
except FleetError as e: print(e.message,"|",e.hint)
