"""Run by instructor's own Python: `instructor_asks.py BASE_URL` asks for an object and prints it."""

from __future__ import annotations

import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather somewhere."""

    place: Literal["Rome", "Oslo"]
    rain: bool


def main(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        said = instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create(
            model="covey",
            messages=[{"role": "user", "content": "How is the weather?"}],
            response_model=Weather,
            max_retries=1,
            max_tokens=200,
        )
    print(said.model_dump_json())


if __name__ == "__main__":
    main(sys.argv[1])
