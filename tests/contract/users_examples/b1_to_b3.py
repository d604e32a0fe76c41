"""B1 to B3: a function-calling agent, its tasks, what it prints."""

import asyncio

from swe_ai_fleet import tools as dtools
from swe_ai_fleet.agents import FunctionCallingAgent

# B3
tasks = [
    ("What is 5 times 7?", None),
    ("What is this page about?", ["https://en.wikipedia.org/wiki/Artificial_intelligence"]),
    ("Caption this image", ["https://cdn.prod.website-files.com/61a05ff14c09ecacc06eec05/66e8522cbe3d357b8434826a_ai-agents.jpg"]),
    ("Find the current stock price of NVIDIA & calculate how many shares I can buy with $5000.", None),
    ("Get the transcript of this YouTube video: https://www.youtube.com/watch?v=aircAruvnKk\nIdentify the main topic, then search Wikipedia for that topic and give me a brief summary of what Wikipedia says about it (give Wikipedia page link).", None),
]


async def main():
    # B1, but for transcribe_youtube, which is not there
    agent = FunctionCallingAgent(
        model_name='gemini/gemini-2.0-flash-lite',
        tools=[dtools.web_search, dtools.calculator, dtools.read_webpage, dtools.search_wikipedia],
        litellm_params={'temperature': 2, 'timeout': 90})   # 2 makes Gemini "creative"; set to 0 for SLMs
    # B2
    for idx, (task, files) in enumerate(tasks, start=1):
        async for response in agent.run(task, files, max_iterations=10, use_planning=False):
            print(response)
        print(f'>>> {agent.task.result=}')
        print(f'>>> {agent.task.steps_taken=}')


asyncio.run(main())
