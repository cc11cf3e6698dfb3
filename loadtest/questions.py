"""The project's prompts by domain: questions in the chat form of the server's model, else texts to continue."""

from __future__ import annotations

import json
from pathlib import Path

from covey import prompts
from covey.text import model_folder
from covey.text.tokenization import load_tokenizer
from covey_client import chat, status
from covey_client.address import Address
from covey_client.asking import ask
from covey_client.errors import ServerError

Prompt = str | tuple[int, ...]
Prompts = dict[str, list[Prompt]]
SECONDS = 30.0  # for the answer to one question about tokens


def of_server(http_url: str, metrics_url: str) -> Prompts:
    """Return the prompts for the model that is served; those in chat form are token ids, as the server's `/tokenize`
    gives them. Raises ConnectionLost or ServerError."""
    if status.read(http_url, metrics_url).served.get("chat_template") != "yes":
        return unformed()
    address = Address.parse(http_url, port=8000)
    return {domain: [_tokens(address, text) for text in prompts.questions(domain)] for domain in prompts.DOMAINS}


def of_folder(folder: str) -> Prompts:
    """Return the prompts for the model of a folder of this machine. Raises InvalidRequest for a broken template."""
    if not model_folder.read(folder).has_chat_template:
        return unformed()
    template, tokenizer = chat.of_folder(Path(folder)), load_tokenizer(folder)
    if tokenizer is None:
        return unformed()

    def tokens(question: str) -> tuple[int, ...]:
        text = template.render([{"role": "user", "content": question}], add_generation_prompt=True)
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    return {domain: [tokens(question) for question in prompts.questions(domain)] for domain in prompts.DOMAINS}


def formed(known: Prompts) -> bool:
    """Return whether these are in a chat form."""
    return any(not isinstance(prompt, str) for texts in known.values() for prompt in texts)


def unformed() -> Prompts:
    """Return the prompts for a model without a chat form."""
    return {domain: list(prompts.load(domain)) for domain in prompts.DOMAINS}


def _tokens(address: Address, text: str) -> tuple[int, ...]:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Content-Type": "application/json"}
    code, said = ask(address, "POST", "/tokenize", headers=headers, seconds=SECONDS, body=body)
    if code != 200:
        raise ServerError(f"{address.target}/tokenize answers {code}: {said[:200].decode(errors='replace')}")
    return tuple(json.loads(said)["tokens"])
