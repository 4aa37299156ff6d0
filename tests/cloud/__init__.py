"""A simulated Google Cloud for tests: see provider.py for how the engine reaches it, cloud.py for what it enforces."""
