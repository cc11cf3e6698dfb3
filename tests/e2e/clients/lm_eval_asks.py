"""Run by lm-eval's own Python: `lm_eval_asks.py BASE_URL TOKENIZER FOLDER` evaluates two small tasks, whose files it
writes into the folder, and prints what was asked and what came as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

TEXT = "User: Do you like films?\nAssistant:"
CHOICES = [" Yes, I do.", " No, never.", " def read():"]
TASKS: dict[str, dict[str, Any]] = {
    "covey_choice": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "target_delimiter": "",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    },
    "covey_words": {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def main(url: str, tokenizer: str, folder: Path) -> None:
    documents = folder / "documents.json"
    documents.write_text(json.dumps({"text": TEXT, "choices": CHOICES, "answer": 0}) + "\n")
    for name, task in TASKS.items():
        common = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": str(documents)}}
        written = {**common, "test_split": "train", "doc_to_text": "{{text}}", **task}
        (folder / f"{name}.yaml").write_text(json.dumps(written))  # JSON is YAML
    asked = {"model": "covey", "base_url": f"{url}/completions", "tokenizer": tokenizer, "num_concurrent": 2}
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={**asked, "tokenizer_backend": "huggingface", "max_length": 1024},
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(folder)),
        batch_size=2,
        bootstrap_iters=0,
    )
    choice, words = (found["samples"][name][0] for name in TASKS)
    said = {
        "text": TEXT,
        "choices": CHOICES,
        "likelihoods": [each[0][0] for each in choice["resps"]],
        "greedy": [each[0][1] for each in choice["resps"]],
        "accuracy": found["results"]["covey_choice"]["acc,none"],
        "words": words["resps"][0][0],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
