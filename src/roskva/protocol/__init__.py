"""What is said on the wire: messages, tokens and summaries, and the frames between Roskva's own processes. Pure."""
