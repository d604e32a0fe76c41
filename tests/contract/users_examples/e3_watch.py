import asyncio
import websockets
import json

async def watch_execution(execution_id):
    uri = f"ws://localhost:8000/api/ws/executions/{execution_id}"
    async with websockets.connect(uri) as websocket:
        while True:
            message = await websocket.recv()
            data = json.loads(message)
            if data["type"] == "node_update":
                print(f"Node {data['node_id']}: {data['node_state']['status']}")
            elif data["type"] == "log":
                print(f"LOG: {data['log']['message']}")
            elif data["type"] == "completion":
                print(f"Completed: {data['result']}")
                break

asyncio.run(watch_execution("execution-id"))
