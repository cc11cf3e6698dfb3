"""OpenAI's API for `covey`: chat, completions, responses and models, and vLLM's tokenize and detokenize.

routes.py         all routes
generation.py     chat and completions: READ THIS FIRST
    body          fields.py, prompts.py and tools.py (with schemas.py) check it;  choices.py generates its choices
    prompt        texts.py lets workers.py render and tokenize it in worker.py, with text_processor.py
    answer        tool_calls.py and thinking.py split its text (delta.py);  shapes.py and errors.py write it
responses.py      /v1/responses as a chat: inputs.py reads its body, items.py writes its answer.
forms.py          how a model writes tool calls: JSON between marks (marks.py)
pieces.py         the text of single tokens, for log probabilities
"""
