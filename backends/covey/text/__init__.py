"""Tokens and text: tokenizers, vocabularies, grammars, and answers as they are streamed."""
