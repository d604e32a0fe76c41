"""Where faults stood before `services.errors`."""

from services.errors import Context as Context
from services.errors import NotAvailable as NotAvailable
from services.errors import status as status
