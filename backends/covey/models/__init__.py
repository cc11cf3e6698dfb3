"""Language models over paged keys and values: from a Hugging Face folder to logits, on one device or several."""
