"""Chats by Telegram: a bot that polls for messages, gets their answers from the fleet and sends them."""
