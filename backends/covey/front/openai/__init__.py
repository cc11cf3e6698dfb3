"""OpenAI's API before the same `covey`: chat, completions, models, and vLLM's tokenize and detokenize."""
