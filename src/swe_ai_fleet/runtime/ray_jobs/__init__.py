"""Ray actors: the pooled `AgentHost`, and `VLLMAgentJob`, one actor for one agent."""
