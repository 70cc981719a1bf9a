"""torchrun's command line, as far as a job that prism hosts depends on it."""

import argparse


def parse_args(arguments):
    parser = argparse.ArgumentParser(prog="torchrun")
    for name, default in (("nnodes", "1:1"), ("nproc-per-node", "1"), ("master-addr", "127.0.0.1"), ("rdzv-endpoint", ""), ("rdzv-id", "none"), ("role", "default")):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", default=default)
    parser.add_argument("--master-port", "--master_port", type=int, default=29500)
    parser.add_argument("--max-restarts", "--max_restarts", type=int, default=0)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--no-python", "--no_python", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def parse_min_max_nnodes(text):
    least, _, most = text.partition(":")
    return int(least), int(most or least)


def get_use_env(_options):
    return True
