from swe_ai_fleet.extensions.knowledge.manager import MemoryManager as MemoryManager
