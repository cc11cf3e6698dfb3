"""Write Hugging Face folders from GGUF files: configuration, weights and tokenizer, as the file says them. A file with
a field, a tensor or a tokenizer that this package does not know is refused by name."""
