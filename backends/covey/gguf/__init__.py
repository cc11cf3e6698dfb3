"""Hugging Face folders from GGUF files: configuration, weights and tokenizer, as the file says them. What this package
does not know is refused rather than guessed."""
