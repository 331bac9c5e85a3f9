"""The server's API: every number it sends is the library's, and whoever may not ask gets nothing."""
