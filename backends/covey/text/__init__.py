"""Tokens and text: tokenizers, vocabularies, grammars, and streamed answers."""
