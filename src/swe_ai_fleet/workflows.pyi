from swe_ai_fleet.extensions.workflows import *  # noqa: F403
