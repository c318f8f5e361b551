"""The tools of the MCP server: what each takes and does."""
