"""Models: canvas in, logits out. Native, from config.json and safetensors."""
