import json
from pathlib import Path

from warm_processes import run_script

DRILL = Path(__file__).parent / "pruning_drill.py"


def test_pruning_killed_at_any_write_resumes_to_the_same_bytes(tmp_path):
    ran = run_script(DRILL, tmp_path)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    *killed, last = lines
    assert not last["killed"]  # past the last write the run ends by itself
    assert len(killed) >= 3 * 3  # three pruned layers, three writes each
    for line in killed:
        assert line["killed"]
        assert line["resumed"] == 0
        assert line["equal"], line
        assert line["left"] == ["out"]
    assert {line["solved"] for line in killed} == {0, 1, 2, 3}
