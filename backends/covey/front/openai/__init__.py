"""OpenAI's API for the same `covey`: chat, completions, responses and models, and vLLM's tokenize and detokenize.

routes.py         all routes
generation.py     chat and completions: READ THIS FIRST
    body          fields.py, prompts.py, tools.py (with schemas.py) check it;  choices.py asks for each of its choices
    prompt        texts.py has workers.py render and tokenize it in worker.py, by text_processor.py
    answer        tool_calls.py and thinking.py take its text apart (delta.py);  shapes.py and errors.py write it
responses.py      /v1/responses as a chat: inputs.py from its body, items.py to its answer
forms.py          how a model writes tool calls: as JSON, between marks.py
pieces.py         the text of single tokens, for log probabilities
"""
