"""The commands of docs/SKILL.md, one after the other as they stand there."""

import json
import re
import shlex
from pathlib import Path

import pytest
from golden import schemas

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "SKILL.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in re.findall(r"^ +scaling (.+)$", PAGE, re.MULTILINE)]


def test_plan_run_read_and_verify_on_emulated_hosts(scaling, tmp_path):
    assert [words[0] for words in COMMANDS] == ["plan", "run", "analyze", "verify"]
    printed = {}
    for words in COMMANDS:
        done = scaling(*words, cwd=tmp_path)
        assert done.returncode in ((0, 1) if words[0] == "verify" else (0,)), done.stderr
        printed[words[0]] = done.stdout
    for verb, name in (("plan", "plan"), ("analyze", "analysis"), ("verify", "verification")):
        schema = schemas.made()[name]
        assert schemas.errors(json.loads(printed[verb]), schema, schema) == []
    analysis = json.loads(printed["analyze"])
    assert analysis["points"][-1]["efficiency"].keys() == {"value", "low", "high", "n"}
    verdict = analysis["verdicts"][0]
    named = set(re.findall(r"`(\w+)(?:\[\])?`", PAGE.partition("3. **Read")[2].partition("Read `quality")[0]))
    assert named >= {"cause", "world_size", "share", "confidence", "evidence", "try"}
    assert verdict.keys() >= named - {"verdicts"}
