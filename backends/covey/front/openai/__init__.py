"""OpenAI's API for the same `covey`: chat, completions, responses and models, and vLLM's tokenize and detokenize."""
