"""Chats by Telegram: a bot that asks for messages, has them answered and sends the answers."""
