"""A service: an engine with the parts that take its requests and send its answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from covey.contracts.errors import CoveyError, Overloaded
from covey.loop.engine import Engine
from covey.loop.memory import Memory
from covey.text.grammar_process import Compiler
from covey.text.streaming import Streamer
from covey.tritonio.fields import RequestParser
from covey.tritonio.reports import Reports
from covey.tritonio.slow_jobs import MOST_GRAMMARS, SlowJobs


@dataclass(frozen=True)
class Service:
    """Holds an engine and the parts around it, which start and end together."""

    engine: Engine
    memory: Memory
    streamer: Streamer
    parser: RequestParser
    reports: Reports
    compiler: Compiler
    long_prompts: SlowJobs = field(default_factory=SlowJobs)
    new_grammars: SlowJobs = field(default_factory=lambda: SlowJobs(MOST_GRAMMARS, "new grammars", nice=0))

    @property
    def open(self) -> int:
        """Return how many requests are open, including those not yet submitted."""
        return self.streamer.open + len(self.long_prompts) + len(self.new_grammars)

    def run(self) -> None:
        """Run the engine until `stop`; raises the error that ends it."""
        self.engine.run()

    def fail(self, error: CoveyError) -> None:
        """End every open answer with the error."""
        self.streamer.fail_all(error)

    def drain(self) -> int:
        """Take no more requests and move no drafter. Return how many requests are open."""
        self.engine.drain()
        self.new_grammars.refuse()
        self.long_prompts.refuse()
        self.memory.close()
        return self.open

    def stop(self) -> None:
        """Make `run` return. Open requests end with an error."""
        if self.open:
            self.fail(Overloaded("the server is stopping"))
        self.engine.stop()

    def close(self) -> None:
        """Close the parts around a stopped engine."""
        self.compiler.close()
        self.new_grammars.stop()
        self.long_prompts.stop()
        self.streamer.stop()
        self.memory.close()
