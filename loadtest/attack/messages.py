"""Draws requests that are almost right from a seed: HTTP bodies, whole HTTP requests as bytes, gRPC messages. Knows
nothing of answers."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from tritonclient.grpc import service_pb2

from covey_client.wire import INPUTS, OUTPUTS

TEXTS = ("", "a", "Ünïcode 🐦", "\x00", "\ud800", "\u202e", "a" * 3000, "true", "nan", "../..", "'\"", "-1", "\r\n")
NUMBERS = (0, 1, 2, -1, 1.5, -0.0, 1e-45, 3.5e38, 1e308, 1 << 31, -(1 << 31) - 1, 1 << 63, 1 << 64, 10**40, True, None)
RAW = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 2000, '{"a":' * 500, "", "\\", '"\\ud800"', "\ufeff1")
DTYPES = ("BYTES", "INT32", "UINT64", "FP32", "BOOL", "INT64", "FP16", "", "bytes", "\ud800")
SIZES = (0, 1, 2, -1, 1 << 31, 1 << 40, 1 << 63, 1.0, "1", None, [1])
NAMES = tuple(field.name for field in INPUTS)
# Grammars that cost much, are almost right, or fit no text; an emulated target refuses all grammars.
GRAMMARS = (
    *("{}", "{", "[" * 3000, '{"$ref": "#"}', '{"type": "integer", "multipleOf": 300007}', '{"enum": []}'),
    *('{"type": "string", "pattern": "(a?){9}("}', '{"patternProperties": {"^a": {}, "a$": {}}}', '{"type": "objec"}'),
    *("a?" * 600, "(a|b)*a(a|b){14}", "xxxx(b|c)" + "a?" * 300, "(", "\\w{1,1000}", "(?=a)", ".{0,100000}"),
    *('start: "a"', "start: start", "start: %json {", 'start: a{1,999}\na: b{1,999}\nb: "x"', 'start: A\nA: A "a"'),
)
OPENAI = ("chat/completions", "completions")  # under /v1, in addition to its routes for tokens:
TOKENS = ("tokenize", "detokenize")
ROUTES = ("covey/generate", "covey/generate_stream", "covey_unary/generate", "covey_unary/infer", "covey/infer")
HEADERS = (
    b"Transfer-Encoding: chunked",
    b"Content-Encoding: gzip",
    b"Content-Length: 3",
    b"Content-Length: -1",
    b"Expect: 100-continue",
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Inference-Header-Content-Length: 7",
    b"Inference-Header-Content-Length: 99999999999",
    b"X: " + b"x" * 20_000,
    b"Host: a\r\nHost: b",
    b"\xff\xfe: 1",
    b"no colon",
    b" folded: 1",
)


class Messages:
    """Draws random requests without end."""

    def __init__(self, seed: int) -> None:
        self._drawn = random.Random(seed)

    def body(self) -> tuple[str, bytes]:
        """Return a path and a body to post to it."""
        if self._drawn.random() < 0.25:
            name = self._drawn.choice((*OPENAI, *TOKENS))
            path = f"/v1/{name}" if name in OPENAI else f"/{name}"
            return path, self._broken(_dumped(self._openai(name)))
        route = self._drawn.choice(ROUTES)
        return f"/v2/models/{route}", self._broken(
            _dumped(self._inference() if route.endswith("infer") else self._fields())
        )

    def _broken(self, text: str) -> bytes:
        """Return the value, sometimes broken."""
        if self._drawn.random() < 0.2:
            at = self._drawn.randrange(len(text))
            text = text[:at] + self._drawn.choice(RAW) + text[at:]
        body = text.encode(errors="surrogatepass")
        return self.mutated(body) if self._drawn.random() < 0.3 else body

    def request(self) -> bytes:
        """Return a whole HTTP request, head and all."""
        path, body = self.body()
        lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: x", b"Content-Length: %d" % len(body)]
        lines += self._drawn.choices(HEADERS, k=self._drawn.choice((0, 0, 1, 2)))
        whole = b"\r\n".join(lines) + b"\r\n\r\n" + body
        if self._drawn.random() < 0.5:
            whole = self.mutated(whole)
        return whole * self._drawn.choice((1, 1, 1, 3))  # sent before the first is answered

    def message(self) -> bytes:
        """Return a ModelInferRequest, or nearly one."""
        message = service_pb2.ModelInferRequest(model_name=self._drawn.choice(("covey", "covey_unary", "x", "")))
        names = ["text_input", *self._drawn.choices(NAMES, k=self._drawn.choice((0, 0, 1, 3)))]
        for name in names:
            tensor = message.inputs.add(name=name, datatype=self._drawn.choice(DTYPES[:-1]))
            tensor.shape.extend(
                self._drawn.choices((0, 1, 1, 1, 2, -1, 1 << 31, 1 << 62), k=self._drawn.choice((0, 1, 1, 9)))
            )
            if self._drawn.random() < 0.7:
                message.raw_input_contents.append(self._raw())
            elif self._drawn.random() < 0.5:
                tensor.contents.bytes_contents.append(self._raw())
                tensor.contents.int_contents.append(self._drawn.getrandbits(31))
        if self._drawn.random() < 0.2:
            message.id = self._drawn.choice(("x" * 1000, "ü"))
            message.parameters[self._drawn.choice(NAMES)].int64_param = -1
        whole = message.SerializeToString()
        return self.mutated(whole) if self._drawn.random() < 0.5 else whole

    def mutated(self, data: bytes) -> bytes:
        """Return the bytes with some of them changed, lost, doubled or put in, or with the end cut off."""
        found = bytearray(data or b"\0")
        for _ in range(self._drawn.choice((1, 1, 2, 8))):
            at = self._drawn.randrange(len(found))
            length = self._drawn.choice((1, 1, 4, 40))
            some = bytes(found[at : at + length])
            flipped = bytes([some[0] ^ (1 << self._drawn.randrange(8)), *some[1:]])
            found[at : at + length] = self._drawn.choice((b"", self._drawn.randbytes(length), some * 2, flipped))
            if not found:
                break
        return bytes(found[: self._drawn.randrange(len(found) + 1)] if self._drawn.random() < 0.1 else found)

    def _raw(self) -> bytes:
        text = self._drawn.choice(TEXTS).encode(errors="surrogatepass")
        length = self._drawn.choice((len(text), len(text), len(text), 0, 1 << 31, (1 << 32) - 1))
        return struct.pack("<I", length) + text if self._drawn.random() < 0.7 else self._drawn.randbytes(4)

    def _openai(self, name: str) -> dict[str, Any]:
        """Return the body of a chat with its template's arguments, of a completion with or without a schema, or of a
        text to tokenize."""
        found: dict[str, Any] = {"model": "covey"}
        if name in OPENAI:
            found["max_tokens"] = 1
            schema = {"name": "x", "schema": self._schema()}
            found |= self._drawn.choice(
                (
                    {},
                    {"response_format": {"type": "json_object"}},
                    {"response_format": {"type": "json_schema", "json_schema": schema}},
                    {"structured_outputs": {self._drawn.choice(("regex", "grammar", "json")): self._grammar()}},
                    {"tools": [{"type": "function", "function": {"name": "f", "parameters": self._schema()}}]},
                )
            )
        if name == "detokenize":
            found["tokens"] = self._drawn.choice(([1, 2], [], [-1], [1 << 40], self._value()))
        elif name == "completions" or (name == "tokenize" and self._drawn.random() < 0.5):
            found["prompt"] = self._drawn.choice(("count 1", *TEXTS, self._value()))
        else:
            roles = ("user", "assistant", "system", "tool", "", "{{ 1 }}")
            texts = ("count 1", "{{ 'a' * 1000 }}", "{% for x in y %}", *TEXTS)
            found["messages"] = [
                {"role": self._drawn.choice(roles), "content": self._drawn.choice(texts)}
                for _ in range(self._drawn.choice((0, 1, 2, 5)))
            ]
            found |= self._drawn.choice(({}, {"chat_template_kwargs": self._value()}, {"add_generation_prompt": False}))
        return found

    def _grammar(self) -> str:
        return self._drawn.choice(GRAMMARS)

    def _schema(self) -> Any:
        try:
            return json.loads(self._grammar())
        except (ValueError, RecursionError):
            return self._value()

    def _fields(self) -> dict[str, Any]:
        names = self._drawn.choices(NAMES, k=self._drawn.choice((0, 1, 1, 2, 5)))
        found = {"text_input": "count 1", "max_tokens": 1} | {name: self._value() for name in names}
        if self._drawn.random() < 0.1:
            found[self._drawn.choice(TEXTS)] = self._value()
        if self._drawn.random() < 0.1:
            found[self._drawn.choice(("grammar_json", "grammar_regex", "grammar_lark"))] = self._grammar()
        return found

    def _value(self, depth: int = 3) -> Any:
        kind = self._drawn.random()
        if kind < 0.4:
            return self._drawn.choice(TEXTS)
        if kind < 0.8 or not depth:
            return self._drawn.choice(NUMBERS)
        items = [self._value(depth - 1) for _ in range(self._drawn.choice((0, 1, 2, 5)))]
        return items if kind < 0.95 else {self._drawn.choice(TEXTS): item for item in items}

    def _inference(self) -> dict[str, Any]:
        inputs = []
        for name, value in self._fields().items():
            values = value if isinstance(value, list) else [value]
            field = {"name": name, "datatype": self._drawn.choice(DTYPES), "shape": [len(values)], "data": values}
            field |= {"datatype": "BYTES" if name == "text_input" else "INT32"} if self._drawn.random() < 0.7 else {}
            if self._drawn.random() < 0.1:
                field["shape"] = [self._drawn.choice(SIZES)]
            field |= (
                {"parameters": {"binary_data_size": self._drawn.choice(SIZES)}} if self._drawn.random() < 0.1 else {}
            )
            inputs.append(field)
        found: dict[str, Any] = {"inputs": inputs}
        if self._drawn.random() < 0.2:
            found["outputs"] = [{"name": self._drawn.choice((OUTPUTS[0].name, *TEXTS)), "parameters": self._value()}]
        if self._drawn.random() < 0.1:
            found[self._drawn.choice(("id", "parameters", "x", "\ud800"))] = self._value()
        return found


def _dumped(value: Any) -> str:
    return json.dumps(value)
