"""A server in front of the engine: OpenAI's HTTP interface, continuous batching, and a stream of every step."""
