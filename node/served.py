"""What this node's own engine has answered since it started, wherever the requests entered the mesh."""

from __future__ import annotations

from dataclasses import dataclass

from engine.interface import TokenOutput


@dataclass(slots=True)
class Served:
    """Running totals. A request that began elsewhere and was resumed here counts here too."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0

    def note(self, prompt_tokens: int, output: TokenOutput) -> None:
        """Counts one output of the engine; the first of a request also counts its prompt."""
        if not output.token_ids:
            return
        if output.first_index == 0:
            self.requests += 1
            self.prompt_tokens += prompt_tokens
            self.cached_tokens += min(output.cached_tokens, prompt_tokens)
        self.generated_tokens += len(output.token_ids)
