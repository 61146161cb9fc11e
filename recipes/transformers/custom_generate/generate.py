"""`model.generate(..., custom_generate="<owner>/tacg", trust_remote_code=True)`: decode with TACG."""

from typing import Any

from transformers import GenerationMixin

from tacg.integrations.transformers import tacg_generate


def generate(model: Any, streamer: Any = None, **named: Any) -> Any:
    """All that `tacg_generate` takes (policy, settings, mask_id, shifted), and `streamer` for the drafts."""
    given = {name: value for name, value in named.items() if value is not None}
    return GenerationMixin.generate(model, custom_generate=tacg_generate, drafts=streamer, **given)
