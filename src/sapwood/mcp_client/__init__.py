"""The client of MCP: agents use the tools of MCP servers, through crashes."""
