"""E5 to E7: what an agent remembers, in a program without an event loop."""

from swe_ai_fleet.memory import MemoryManager

# E5
memory = MemoryManager(agent_id="agent1")
memory.add_interaction(user_message="What is Python?", assistant_message="Python is a programming language...", save_to_longterm=True)
context = memory.conversation.get_context_string(limit=5)
print(context)
print(memory.recall("What is Python?"))
# E6
memory.add_fact("Python was created by Guido van Rossum", metadata={"topic": "python", "type": "history"})
relevant = memory.recall("Who created Python?", n_results=3)
print(relevant)
# E7
memory = MemoryManager(agent_id="agent1", max_conversation_messages=10, use_vector_memory=True)
for number in range(8):
    memory.add_interaction(f"Question {number}", f"Answer {number}")
print(len(memory.conversation), memory.recall("Who created Python?", n_results=1))
memory.clear_all()
print(len(memory.conversation), memory.recall("Who created Python?"))
