"""Who takes part in the bench `speedup`: Covey's static choices over the real server, and transformers' own ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covey.profile import Profile
from covey.server import Server
from loadtest.bench.hugging_face import HuggingFace, Weights
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.work import Competitor

TREE, WITHOUT, REJECTION = "tree", "without drafters", "rejection"
DEPTHS = (1, 2, 3, 4, 5, 6)
TREE_DEPTH, TREE_WIDTH = 4, 3  # of the candidate trees; a second server's profile sets the width
RULES_DEPTH = 4  # at which coupled and rejection acceptance are compared
GENERATE, LOOKUP = "hf generate", "hf prompt lookup"
ASSISTED = {  # transformers' assisted generation: a constant count, its dynamic schedule, and its own defaults
    "hf assisted 4": {
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    },
    "hf assisted heuristic": {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "heuristic",
        "assistant_confidence_threshold": 0.0,
    },
    "hf assisted confidence": {
        "num_assistant_tokens": 20,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.4,
    },
}
LOOKUP_TOKENS = 5
SPECIALISTS = {
    "code": "draft_code",
    "math": "draft_math",
    "translation": "draft_translate",
    "summarisation": "draft_summary",
    "chat": "draft_chat",
}


@dataclass(frozen=True)
class Cast:
    """Everything that contestants are made of. A server that is None leaves its contestants out."""

    profile: Profile
    folder: str  # the target's
    repository: Path
    server: Server
    trees: Server | None
    without: Server | None
    depths: tuple[int, ...]
    assisted: tuple[str, ...]

    def drafter(self, domain: str) -> str:
        """The domain's specialist, else the drafter that serves requests which name none."""
        known = self.profile.speculation.drafters
        return SPECIALISTS[domain] if SPECIALISTS[domain] in known else known[0]

    def over_triton(self, domain: str, *, hot: bool) -> list[Competitor]:
        drafter = self.drafter(domain)

        def covey(server: Server, name: str, **settings: str) -> OverTriton:
            return OverTriton(server, name, stream=True, settings=settings)

        made = [covey(self.server, OFF, speculation="off")]
        made += [covey(self.server, fixed(k), speculation=fixed(k), drafter=drafter) for k in self.depths]
        if self.trees is not None:
            made.append(covey(self.trees, TREE, speculation=fixed(TREE_DEPTH), drafter=drafter))
        if self.without is not None:
            made.append(covey(self.without, WITHOUT, speculation="off"))
        if hot:
            settings = {"speculation": fixed(RULES_DEPTH), "drafter": drafter, "verification": "rejection"}
            made.append(covey(self.server, REJECTION, **settings))
        return list(made)

    def hugging_face(self, domain: str, target: Weights, load: Callable[[str], Weights]) -> list[Competitor]:
        """`load` gives the weights of a folder, loaded once."""
        ends: dict[str, object] = {"eos_token_id": target.end_ids}
        made = [
            HuggingFace(GENERATE, target, options=ends),
            HuggingFace(LOOKUP, target, options={**ends, "prompt_lookup_num_tokens": LOOKUP_TOKENS}),
        ]
        drafter = self.drafter(domain)
        folder = Path(self.profile.drafter.folder_of(drafter) or self.repository / drafter / "1")
        if (folder / "config.json").is_file():
            assistant = load(str(folder))
            made += [
                HuggingFace(name, target, assistant=assistant, assistant_settings=ASSISTED[name], options=ends)
                for name in self.assisted
            ]
        return list(made)
