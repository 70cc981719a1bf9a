"""prism emulate --rules: one rank runs, and a file says what it is given."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOE = (ROOT / "examples/train_moe.py", "--steps", 3)

pytestmark = pytest.mark.usefixtures("nothing_left")


def write_rules(path, *rules):
    path.write_text(json.dumps({"schema": "prism.rules", "schema_version": 1, "rules": rules}))
    return path


def capture(prism, job, ranks, *command):
    done = prism("capture", "--job", job, "--values", "cpu", "--", "torchrun", "--nproc-per-node", ranks, *command)
    assert done.code == 0, done.err


def emulate(prism, captured, rules):
    result = prism("emulate", captured, "--job", prism.job, "--force", "--rank", 1, "--values", "cpu", "--json", "--rules", rules)
    assert result.code == 0, result.err
    return json.loads(result.out), (prism.job / "ranks/00001/stdout.log").read_text()


@pytest.mark.parametrize(("give", "low", "high"), [
    ("own", 4, 4), ("zeros", 0, 0),
    # The mean of 512 draws is within five of its deviations.
    ({"noise": {"seed": 4, "mean": 10, "deviation": 0.64}}, 9.859, 10.141),
])
def test_rank_is_given_what_the_rule_says(prism, tmp_path, give, low, high):
    program = tmp_path / "sum.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.full((512,), dist.get_rank() + 1.0, device='cuda'); dist.all_reduce(x)\n"
        "print('mean', x.double().mean().item())\n"
        "dist.destroy_process_group()\n")
    capture(prism, tmp_path / "whole", 2, program)
    answer, text = emulate(prism, tmp_path / "whole", write_rules(tmp_path / "rules.json", {"match": {"operation": "AllReduce", "type": "float32"}, "give": give}))
    # 3 is what the true peer would have given.
    assert low <= float(re.search(r"mean (\S+)", text)[1]) <= high
    assert answer["ruled"] == 1
    assert json.loads((prism.job / "job.json").read_text())["exchange"] == "rules"


def received_rows(prism):
    """Elements that rank 1 receives from each peer, message by message."""
    trace = json.loads(prism("inspect", "--nodes", "--json", prism.job / "trace/rank-00001.prt").out)
    calls = trace["calls"]
    return [(calls[node[1]]["peer"], calls[node[1]]["count"]) for sequence in trace["sequences"] for node in sequence.get("list", [])
            if node[0] == "comm" and calls[node[1]]["operation"] == "Recv"]


def test_router_decides_what_peers_send(prism, tmp_path):
    capture(prism, tmp_path / "whole", 4, *MOE)

    def routed(seed):
        router = {"seed": seed, "members": [{"minimum": 4, "maximum": 120, "mean": 64, "deviation": 20, "median": 63, "skew": 0.1}]}
        rules = write_rules(tmp_path / f"{seed}.json", {"match": {"operation": "AlltoAll", "type": "int64"}, "give": {"router": router}})
        answer, text = emulate(prism, tmp_path / "whole", rules)
        assert answer["ruled"] == 3 * 4 and answer["resized"] > 0  # steps, layers
        losses = [float(loss) for loss in re.findall(r"loss (\S+) 0x", text)]
        assert all(0 < loss < 20 for loss in losses)
        return received_rows(prism)

    one, again, other = routed(1), routed(1), routed(2)
    assert one == again and one != other


@pytest.mark.parametrize(("text", "message"), [
    ("", "is not JSON"), ("{}", "schema is null"), ('{"schema": "prism.rules", "schema_version": 9, "rules": []}', "schema_version is 9"),
    ('{"schema": "prism.rules", "schema_version": 1, "rules": [{"give": "zero"}]}', "did you mean 'zeros'?"),
])
def test_bad_files_are_refused(prism, tmp_path, text, message):
    program = tmp_path / "nothing.py"
    program.write_text("import torch; torch.ones(1, device='cuda')\n")
    capture(prism, tmp_path / "whole", 1, program)
    (tmp_path / "rules.json").write_text(text)
    result = prism("emulate", tmp_path / "whole", "--job", prism.job, "--rules", tmp_path / "rules.json")
    assert result.code != 0 and message in result.err and "hint:" in result.err, result.err
