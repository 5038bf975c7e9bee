"""Asks a node one question, and prints what came as JSON: for tests that ask from another host.

Arguments: node, mesh token, policy, prompt.
"""

from __future__ import annotations

import json
import sys

from node.client import Client
from rumormill.v1 import inference_pb2

MAX_TOKENS = 48


def main(node: str, token: str, policy: str, prompt: str) -> None:
    with Client.from_token(node, token) as client:
        sampling = inference_pb2.Sampling(max_tokens=MAX_TOKENS, ignore_eos=True)
        answers = list(client.generate(prompt, sampling, policy=policy))
        print(
            json.dumps(
                {
                    "node": answers[-1].route.node,
                    "text": "".join(answer.text for answer in answers),
                    "token_ids": [token for answer in answers for token in answer.token_ids],
                    "prompt_ids": client.tokenize(prompt),
                }
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
