"""Scaling to many machines with Ray: `Fleet` decodes prompts, `generate` whole files. Needs the extra `ray`."""

from tacg.scale.bulk import generate
from tacg.scale.fleet import Fleet

__all__ = ["Fleet", "generate"]
