"""The engine: the only loop, and the rows that go through it."""
