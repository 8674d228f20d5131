"""Messages: conversations as prompts, and replies as content, reasoning and tool calls."""

from plait.generation.messages.message import Message, Part, ToolCall
from plait.generation.messages.parser import Parser
from plait.generation.messages.render import render
from plait.generation.messages.tools import tool_schema

__all__ = ["Message", "Parser", "Part", "ToolCall", "render", "tool_schema"]
